INSERT INTO stoker.event (first, last, low, high, count, body)
SELECT u.* FROM
    unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::uuid[], $5::int[], $6::bytea[])
    AS u (first, last, low, high, count, body)
