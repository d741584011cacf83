INSERT INTO stoker.done (id, finished, expires, token, started, attempts, status, settled, cancel, queue)
SELECT u.id, $1::bigint, u.expires, u.token, u.started, u.attempts, $2::smallint, u.settled, u.cancel, u.queue
FROM
    unnest($3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[], $7::int[], $8::smallint[], $9::boolean[], $10::text[])
    AS u (id, expires, token, started, attempts, settled, cancel, queue)
