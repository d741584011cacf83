-- name: outbox_stream_names
SELECT name FROM stoker.stream ORDER BY name

-- name: outbox_consumer
SELECT k.rid, s.sid
FROM stoker.stream AS s JOIN stoker.consumer AS k ON k.sid = s.sid AND k.name = $2::text
WHERE s.name = $1::text

-- name: outbox_consumer_pause
UPDATE stoker.consumer SET paused = $2::boolean WHERE rid = $1::int

-- name: outbox_unnumbered
-- How many messages of each partition of a stream have no number yet, and when the first of them was appended.
SELECT i.part, count(*), (min(ARRAY[i.n, i.created]))[2] FROM stoker.incoming AS i WHERE i.sid = $1::int GROUP BY i.part

-- name: parked_release
UPDATE stoker.parked SET released = true
WHERE rid = $1::int AND pid BETWEEN $2::int * 64 AND $2::int * 64 + 63 AND key = $3::text
RETURNING pid

-- name: outbox_sweep_try
SELECT pg_try_advisory_xact_lock(hashtext('stoker.swept'), $1::int)

-- name: drop_consumer
DELETE FROM stoker.consumer WHERE rid = $1::int

-- name: drop_consumer_cursors
DELETE FROM stoker.cursor WHERE rid = $1::int

-- name: drop_consumer_letters
DELETE FROM stoker.letter WHERE rid = $1::int

-- name: drop_consumer_parked
DELETE FROM stoker.parked WHERE rid = $1::int

-- name: outbox_passed
-- How far every consumer of a stream has come, per partition, and how far it is deleted.
SELECT g.pid, min(c.position), coalesce(w.number, 0)
FROM stoker.stream AS s
CROSS JOIN LATERAL (SELECT s.sid * 64 + part AS pid FROM generate_series(0, s.partitions - 1) AS part) AS g
JOIN stoker.consumer AS k ON k.sid = s.sid
CROSS JOIN LATERAL (
    SELECT v.position FROM stoker.cursor AS v WHERE v.rid = k.rid AND v.pid = g.pid
    ORDER BY v.rid DESC, v.pid DESC, v.turn DESC LIMIT 1
) AS c
LEFT JOIN stoker.swept AS w ON w.pid = g.pid
WHERE s.sid = $1::int
GROUP BY g.pid, w.number
HAVING min(c.position) > coalesce(w.number, 0)
ORDER BY g.pid

-- name: outbox_sweep
-- Delete messages of a partition behind $2 up to $3, at most $4, and none behind the first that is younger than $5.
WITH a AS MATERIALIZED (
    SELECT m.number, m.created FROM stoker.message AS m
    WHERE m.pid = $1::int AND m.number > $2::bigint AND m.number <= $3::bigint
    ORDER BY m.pid, m.number LIMIT $4::int
), l AS MATERIALIZED (
    SELECT coalesce(
        (SELECT min(a.number) - 1 FROM a WHERE a.created > $5::bigint), (SELECT max(a.number) FROM a), $2::bigint
    ) AS last
), d AS (
    DELETE FROM stoker.message AS m USING l
    WHERE m.pid = $1::int AND m.number > $2::bigint AND m.number <= l.last
    RETURNING m.id, m.payload IS NULL AS aside
), b AS (
    DELETE FROM stoker.body WHERE id = ANY(ARRAY(SELECT d.id FROM d WHERE d.aside))
), s AS (
    INSERT INTO stoker.swept (pid, number) SELECT $1::int, l.last FROM l WHERE l.last > $2::bigint
    ON CONFLICT (pid) DO UPDATE SET number = excluded.number
)
SELECT count(*)::int FROM d
