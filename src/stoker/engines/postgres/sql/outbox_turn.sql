-- Write a cursor in place of the version that was read, and read at most $14 messages and $15 bytes behind it. No row:
-- another transaction has written the cursor since. $16: the commit need not wait for the disk.
WITH t AS MATERIALIZED (
    SELECT CASE WHEN $16::boolean THEN set_config('synchronous_commit', 'off', true) END AS lax
), u AS (
    UPDATE stoker.cursor AS c
    SET
        turn = c.turn + 1, position = $4::bigint, attempts = $5::int, last_error = $6::text, holder = $7::text,
        token = $8::bigint, until = $9::bigint, due = $10::bigint, served = $11::bigint, size = $12::int,
        failures = $13::int
    FROM t
    WHERE c.rid = $1::int AND c.pid = $2::int AND c.turn = $3::bigint
    RETURNING c.pid, c.position
)
SELECT
    m.number, m.id, m.created, m.raw, m.key, m.type, m.headers, m.payload,
    (SELECT h.number FROM stoker.message AS h WHERE h.pid = u.pid ORDER BY h.pid DESC, h.number DESC LIMIT 1)
FROM u
LEFT JOIN LATERAL (
    SELECT
        x.*, row_number() OVER (ORDER BY x.number) AS ord,
        sum(coalesce(octet_length(x.payload), 0)) OVER (ORDER BY x.number) AS total
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
