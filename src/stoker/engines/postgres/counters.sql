-- name: fold
-- Some of what was counted is added up. Rows another folder is at are left to it; rows of `tally` are locked in their
-- order. Answers how many rows were folded.
WITH d AS (
    DELETE FROM stoker.delta
    WHERE ctid = ANY(ARRAY(SELECT ctid FROM stoker.delta LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING *
), s AS (
    INSERT INTO stoker.tally AS t (
        queue, kind, pending, running, retrying, done, dead, canceled, discarded, retried, enqueued, completed,
        retries, failed, cancels
    )
    SELECT
        queue, kind, coalesce(sum(pending), 0), coalesce(sum(running), 0), coalesce(sum(retrying), 0),
        coalesce(sum(done), 0), coalesce(sum(dead), 0), coalesce(sum(canceled), 0), coalesce(sum(discarded), 0),
        coalesce(sum(retried), 0), coalesce(sum(enqueued), 0), coalesce(sum(completed), 0),
        coalesce(sum(retries), 0), coalesce(sum(failed), 0), coalesce(sum(cancels), 0)
    FROM d GROUP BY queue, kind ORDER BY queue, kind
    ON CONFLICT (queue, kind) DO UPDATE SET
        pending = t.pending + excluded.pending, running = t.running + excluded.running,
        retrying = t.retrying + excluded.retrying, done = t.done + excluded.done, dead = t.dead + excluded.dead,
        canceled = t.canceled + excluded.canceled, discarded = t.discarded + excluded.discarded,
        retried = t.retried + excluded.retried, enqueued = t.enqueued + excluded.enqueued,
        completed = t.completed + excluded.completed, retries = t.retries + excluded.retries,
        failed = t.failed + excluded.failed, cancels = t.cancels + excluded.cancels
)
SELECT count(*) FROM d

-- name: fold_troubles
-- Of a kind's errors only the newest counts, and not even that once the kind has succeeded.
DELETE FROM stoker.trouble AS t
WHERE
    t.error IS NULL
    OR EXISTS (SELECT 1 FROM stoker.trouble AS later WHERE later.kind = t.kind AND later.n > t.n)
