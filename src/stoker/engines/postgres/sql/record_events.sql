INSERT INTO stoker.event (at, type, job, queue, kind, attempt, duration)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::int[], $7::bigint[])
