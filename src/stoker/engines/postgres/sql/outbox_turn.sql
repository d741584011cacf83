-- Write a cursor in place of the version that was read, and read at most $14 messages and $15 bytes behind it. No row:
-- another transaction has written the cursor since. $16: the commit need not wait for the disk.
--
-- $17: the cursor is leased anew without a look at it first. Its token, end and start are then counted from now, and it is
-- written only if there is a message, and nothing but messages, that worker $7 may deliver. $18 is the clock, as always.
WITH t AS MATERIALIZED (
    SELECT
        CASE WHEN $16::boolean THEN set_config('synchronous_commit', 'off', true) END AS lax,
        CASE WHEN $17::boolean THEN coalesce($18::bigint, stoker.clock()) ELSE 0 END AS now,
        CASE
            WHEN $17::boolean AND $18::bigint IS NULL
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
            NOT $17::boolean OR (
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
SELECT m.number, m.id, m.created, m.raw, m.key, m.type, m.headers, m.payload, e.number, u.now
FROM u
LEFT JOIN LATERAL (
    SELECT h.number FROM stoker.message AS h WHERE h.pid = u.pid ORDER BY h.pid DESC, h.number DESC LIMIT 1
) AS e ON true
LEFT JOIN LATERAL (
    SELECT
        x.*, row_number() OVER (ORDER BY x.number) AS ord,
        sum(coalesce(octet_length(x.payload), 0)) OVER (ORDER BY x.number ROWS UNBOUNDED PRECEDING) AS total
    FROM (
        SELECT
            r.number, r.id, r.created, r.raw, r.key, r.type, r.headers,
            CASE
                WHEN r.payload IS NULL THEN (SELECT b.payload FROM stoker.body AS b WHERE b.id = r.id)
                ELSE r.payload
            END AS payload
        FROM stoker.message AS r
        WHERE r.pid = u.pid AND r.number > u.position
        ORDER BY r.pid, r.number LIMIT $14::int
    ) AS x
) AS m ON m.ord = 1 OR m.total <= $15::bigint
ORDER BY m.number
