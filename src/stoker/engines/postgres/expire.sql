-- name: mark
SELECT id FROM stoker.mark WHERE name = $1

-- name: mark_write
INSERT INTO stoker.mark (name, id) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET id = excluded.id

-- name: expire_sample
-- How long the youngest finished jobs are kept, by their ids.
SELECT id, expires FROM stoker.done ORDER BY id DESC LIMIT $1

-- name: expire_sweep
-- A stretch of finished jobs after $1 and up to $2, $3 at most: those that expired before $4, $5 at most, are removed with
-- all that belongs to them (`UnitOfWork.remove`), except those that another transaction has locked. Returns how many jobs
-- were removed, how many were looked at and the last of them, how many had expired and the last of those. Their events
-- are hidden as in `remove_events`.
-- Ids are passed on as arrays, so that each table is searched by its index whatever number the planner expects.
WITH w AS MATERIALIZED (
    SELECT id, expires FROM stoker.done WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3
), e AS MATERIALIZED (
    SELECT id FROM w WHERE expires < $4 ORDER BY id LIMIT $5
), g AS (
    DELETE FROM stoker.done
    WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM stoker.done WHERE id = ANY(ARRAY(SELECT id FROM e)) AND expires < $4 FOR UPDATE SKIP LOCKED
    ))
    RETURNING id, queue, status
), j AS (
    DELETE FROM stoker.job AS j USING g WHERE j.id = g.id RETURNING g.queue, j.kind, g.status
), p AS (
    DELETE FROM stoker.past WHERE id = ANY(ARRAY(SELECT id FROM g))
), f AS (
    DELETE FROM stoker.failure WHERE id = ANY(ARRAY(SELECT id FROM g))
), s AS (
    DELETE FROM stoker.step WHERE id = ANY(ARRAY(SELECT id FROM g))
), b AS (
    SELECT n FROM stoker.event WHERE n > 0 ORDER BY n DESC LIMIT 1
), v AS (
    INSERT INTO stoker.removed (job, block, at) SELECT g.id, b.n, -1 FROM g CROSS JOIN b
    ON CONFLICT (job) DO UPDATE SET block = excluded.block
), c AS (
    INSERT INTO stoker.delta (queue, kind, done, dead, canceled, discarded, retried)
    SELECT
        queue, kind, -count(*) FILTER (WHERE status = 3), -count(*) FILTER (WHERE status = 4),
        -count(*) FILTER (WHERE status = 5), -count(*) FILTER (WHERE status = 6), -count(*) FILTER (WHERE status = 7)
    FROM j GROUP BY queue, kind
)
SELECT
    (SELECT count(*) FROM g), (SELECT count(*) FROM w), (SELECT id FROM w ORDER BY id DESC LIMIT 1),
    (SELECT count(*) FROM e), (SELECT id FROM e ORDER BY id DESC LIMIT 1)

-- name: expire_take
-- Delete rows of finished jobs, except those that another transaction has locked.
DELETE FROM stoker.done AS d USING stoker.job AS j
WHERE
    d.id = ANY(ARRAY(SELECT id FROM stoker.done WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED))
    AND j.id = d.id
RETURNING d.id, d.queue, j.kind, d.status

-- name: expire_finished
SELECT coalesce(sum(done + dead + canceled + discarded + retried), 0)::bigint
FROM (
    SELECT done, dead, canceled, discarded, retried FROM stoker.tally
    UNION ALL
    SELECT coalesce(done, 0), coalesce(dead, 0), coalesce(canceled, 0), coalesce(discarded, 0), coalesce(retried, 0)
    FROM stoker.delta
) AS n

-- name: expire_nearest
-- The finished jobs nearest to their expiry. This reads them all.
SELECT id FROM stoker.done ORDER BY expires, id LIMIT $1

-- name: expire_events
-- Blocks whose last event is older.
DELETE FROM stoker.event
WHERE n = ANY(ARRAY(
    SELECT n FROM stoker.event WHERE first < $1 AND last < $1 ORDER BY first LIMIT $2 FOR UPDATE SKIP LOCKED
))
RETURNING count

-- name: expire_kind_points
DELETE FROM stoker.point WHERE bucket >= $1 AND bucket < $2 AND starts_with(metric, 'kind_') RETURNING bucket

-- name: expire_points
DELETE FROM stoker.point WHERE bucket < $1 RETURNING bucket

-- name: expire_remembered
DELETE FROM stoker.remembered WHERE id = ANY(ARRAY(
    SELECT r.id FROM stoker.remembered AS r WHERE r.at < $1 ORDER BY r.at LIMIT $2 FOR UPDATE SKIP LOCKED
))
RETURNING 1

-- name: expire_removed
-- Removals of jobs when no block that may hold events of them is left, and none can come any more.
DELETE FROM stoker.removed WHERE job = ANY(ARRAY(
    SELECT r.job FROM stoker.removed AS r
    WHERE
        r.block < coalesce((SELECT n FROM stoker.event WHERE n > 0 ORDER BY n LIMIT 1), 9223372036854775807)
        AND r.at < least($1, (SELECT first FROM stoker.event WHERE first < $1 ORDER BY first LIMIT 1))
    ORDER BY r.block
    LIMIT $2 FOR UPDATE SKIP LOCKED
))

-- name: expire_received
DELETE FROM stoker.received WHERE ctid = ANY(ARRAY(
    SELECT r.ctid FROM stoker.received AS r WHERE r.until <= $1::bigint ORDER BY r.until LIMIT $2::int
))
RETURNING 1

-- name: expire_keys
-- Unique keys that were kept for a time; one that another transaction has locked is left to it.
DELETE FROM stoker.dedupe WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM stoker.dedupe WHERE until <= $1::bigint ORDER BY until LIMIT $2::int FOR UPDATE SKIP LOCKED
))
RETURNING 1

-- name: expire_audit
DELETE FROM stoker.audit WHERE at < $1 RETURNING n

-- name: expire_operations
DELETE FROM stoker.document
WHERE kind = 'operations' AND COALESCE((document::json ->> 'seen')::bigint, 0) < $1
RETURNING 1

-- name: expire_presences
DELETE FROM stoker.presence WHERE seen < $1 RETURNING worker

-- name: expire_locks
DELETE FROM stoker.lock WHERE until <= $1 RETURNING name

-- name: expire_workers
-- Names of workers that were reaped, but for the youngest. No worker can come back under one that is forgotten: a worker
-- that is not known is as good as one that was reaped.
DELETE FROM stoker.retired WHERE name = ANY(ARRAY(SELECT name FROM stoker.retired ORDER BY at DESC, name OFFSET $1))
