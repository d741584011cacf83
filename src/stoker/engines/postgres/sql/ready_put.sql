INSERT INTO stoker.ready (due, token, id, attempts, priority, status, settled, past, queue)
SELECT $1::bigint, u.token, u.id, u.attempts, u.priority, 0, u.settled, $2::boolean, u.queue
FROM
    unnest($3::uuid[], $4::bigint[], $5::int[], $6::smallint[], $7::smallint[], $8::text[])
    AS u (id, token, attempts, priority, settled, queue)
