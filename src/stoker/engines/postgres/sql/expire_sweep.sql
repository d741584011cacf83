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
