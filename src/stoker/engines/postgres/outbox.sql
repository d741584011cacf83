-- name: outbox_append
-- Append messages. Not registered, or with another count of partitions: no row. Lists that need no quotes
-- are texts; where all types or headers are the same, $11 and $12, their lists are empty.
INSERT INTO stoker.incoming (xid, created, id, sid, part, raw, key, type, headers, payload)
SELECT x.xid, $3::bigint, u.id, x.sid, u.part, u.raw, u.key, coalesce(u.type, $11::text),
    coalesce(u.headers, $12::text), u.payload
FROM
    (
        SELECT s.sid, pg_current_xact_id() AS xid FROM stoker.stream AS s
        WHERE s.name = $1::text AND s.partitions = $2::smallint OFFSET 0
    ) AS x,
    unnest(
        $4::text::uuid[], $5::text::smallint[], $6::text::boolean[], $7::text[], $8::text[], $9::text[],
        $10::text::bytea[]
    ) WITH ORDINALITY AS u (id, part, raw, key, type, headers, payload, ord)
ORDER BY u.ord

-- name: outbox_append_large
-- Append messages some of which have a payload that is stored beside them: $13 and $14 are ids and payloads of those.
WITH x AS MATERIALIZED (
    SELECT s.sid, pg_current_xact_id() AS xid FROM stoker.stream AS s
    WHERE s.name = $1::text AND s.partitions = $2::smallint
), b AS (
    INSERT INTO stoker.body (id, payload)
    SELECT u.id, u.payload FROM x, unnest($13::uuid[], $14::bytea[]) AS u (id, payload)
)
INSERT INTO stoker.incoming (xid, created, id, sid, part, raw, key, type, headers, payload)
SELECT x.xid, $3::bigint, u.id, x.sid, u.part, u.raw, u.key, coalesce(u.type, $11::text),
    coalesce(u.headers, $12::text), u.payload
FROM
    x,
    unnest(
        $4::text::uuid[], $5::text::smallint[], $6::text::boolean[], $7::text[], $8::text[], $9::text[],
        $10::text::bytea[]
    ) WITH ORDINALITY AS u (id, part, raw, key, type, headers, payload, ord)
ORDER BY u.ord

-- name: outbox_append_one
-- Append one message, whose payload is not stored aside. Not registered, or with another count of partitions: no row.
INSERT INTO stoker.incoming (created, id, sid, part, raw, key, type, headers, payload)
SELECT $3::bigint, $4::text::uuid, s.sid, $5::smallint, $6::boolean, $7::text, $8::text, $9::text, $10::bytea
FROM stoker.stream AS s
WHERE s.name = $1::text AND s.partitions = $2::smallint

-- name: outbox_stream
SELECT sid, partitions, keep FROM stoker.stream WHERE name = $1::text

-- name: outbox_stream_make
INSERT INTO stoker.stream (name, partitions, keep) VALUES ($1::text, $2::smallint, $3::bigint)
ON CONFLICT (name) DO NOTHING
RETURNING sid

-- name: outbox_stream_keep
UPDATE stoker.stream SET keep = $2::bigint WHERE sid = $1::int

-- name: outbox_consumer_make
INSERT INTO stoker.consumer (sid, name) VALUES ($1::int, $2::text) ON CONFLICT (sid, name) DO NOTHING RETURNING rid

-- name: outbox_sweep_lock
-- What a new consumer starts behind must not be deleted at the same moment.
SELECT pg_advisory_xact_lock(hashtext('stoker.swept'), $1::int)

-- name: outbox_partitions
-- The highest deleted and the highest number of every partition of a stream.
SELECT s.sid * 64 + g.part, coalesce(w.number, 0), coalesce(m.number, w.number, 0)
FROM stoker.stream AS s
CROSS JOIN LATERAL generate_series(0, s.partitions - 1) AS g (part)
LEFT JOIN stoker.swept AS w ON w.pid = s.sid * 64 + g.part
LEFT JOIN LATERAL (
    SELECT m.number FROM stoker.message AS m WHERE m.pid = s.sid * 64 + g.part ORDER BY m.pid DESC, m.number DESC LIMIT 1
) AS m ON true
WHERE s.sid = $1::int
ORDER BY g.part

-- name: outbox_first_since
SELECT m.number FROM stoker.message AS m
WHERE m.pid = $1::int AND m.number > $2::bigint AND m.created >= $3::bigint
ORDER BY m.pid, m.number
LIMIT 1

-- name: outbox_cursor_make
INSERT INTO stoker.cursor (rid, pid, position)
SELECT $1::int, u.pid, u.position FROM unnest($2::int[], $3::bigint[]) AS u (pid, position)

-- name: outbox_cursors
SELECT * FROM stoker.cursors(0, $1::text, $2::text, $3::int, $4::text, $5::bigint, $6::bigint)

-- name: outbox_cursor_lock
SELECT 1 FROM stoker.cursor WHERE rid = $1::int AND pid = $2::int AND turn = $3::bigint FOR UPDATE

-- name: outbox_turn
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

-- name: outbox_bodies
-- Read payloads that are stored aside, in the order of $1, as long as they fit into $3 bytes; the first one is always
-- read. $2: bytes of other payloads before each of them. One that is missing is NULL.
SELECT x.payload
FROM (
    SELECT
        u.ord, b.payload,
        u.before + sum(coalesce(octet_length(b.payload), 0)) OVER (ORDER BY u.ord ROWS UNBOUNDED PRECEDING) AS total
    FROM unnest($1::uuid[], $2::bigint[]) WITH ORDINALITY AS u (id, before, ord)
    LEFT JOIN stoker.body AS b ON b.id = u.id
) AS x
WHERE x.ord = 1 OR x.total <= $3::bigint
ORDER BY x.ord

-- name: parked_keys
SELECT key FROM stoker.parked WHERE rid = $1::int AND pid = $2::int

-- name: parked_released
SELECT key FROM stoker.parked WHERE rid = $1::int AND pid = $2::int AND released ORDER BY since, key LIMIT 1

-- name: receive
INSERT INTO stoker.received (source, id, until) SELECT $1::text, u, $3::bigint FROM unnest($2::text[]) AS u
ON CONFLICT (source, id) DO NOTHING
RETURNING id
