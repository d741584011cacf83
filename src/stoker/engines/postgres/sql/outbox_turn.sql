-- Write a cursor in place of the version that was read, and read at most $14 messages behind it, in any order: to sort
-- them costs the server more than the client. No row: another transaction has written the cursor since. $15: the commit
-- need not wait for the disk.
--
-- $16: the cursor is leased anew without a look at it first. Its token, end and start are then counted from now, and it is
-- written only if there is a message, and nothing but messages, that worker $7 may deliver. $17 is the clock, as always.
WITH t AS MATERIALIZED (
    SELECT
        CASE WHEN $15::boolean THEN set_config('synchronous_commit', 'off', true) END AS lax,
        CASE WHEN $16::boolean THEN coalesce($17::bigint, stoker.clock()) ELSE 0 END AS now,
        CASE
            WHEN $16::boolean AND $17::bigint IS NULL
            THEN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint ELSE 0
        END AS up
), u AS (
    UPDATE stoker.cursor AS c
    SET
        turn = c.turn + 1, position = $4::bigint, attempts = $5::int, last_error = $6::text, holder = $7::text,
        token = greatest($8::bigint, t.now), until = $9::bigint + t.now, due = $10::bigint, served = $11::bigint + t.now,
        size = $12::int, failures = $13::int
    FROM t
    WHERE
        c.rid = $1::int AND c.pid = $2::int AND c.turn = $3::bigint
        AND (
            NOT $16::boolean OR (
                EXISTS (SELECT FROM stoker.message AS m WHERE m.pid = $2::int AND m.number > $4::bigint)
                AND NOT EXISTS (SELECT FROM stoker.parked AS p WHERE p.rid = $1::int AND p.pid = $2::int)
                AND NOT EXISTS (SELECT FROM stoker.letter AS l WHERE l.rid = $1::int AND l.pid = $2::int AND l.due)
                AND NOT EXISTS (SELECT FROM stoker.consumer AS k WHERE k.rid = $1::int AND k.paused)
                AND EXISTS (
                    SELECT FROM stoker.worker AS w WHERE w.name = $7::text AND greatest(w.until, t.up + w.lease) >= t.now
                )
            )
        )
    RETURNING c.pid, c.position, t.now
)
SELECT m.number, m.id, m.created, m.raw, m.key, m.type, m.headers, m.payload, u.now
FROM u
LEFT JOIN LATERAL (
    SELECT * FROM stoker.message AS r
    WHERE r.pid = u.pid AND r.number > u.position
    ORDER BY r.pid, r.number LIMIT $14::int
) AS m ON true
