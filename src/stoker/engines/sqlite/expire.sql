-- name: expire_jobs
SELECT expires, id FROM stoker_done WHERE status > 3 AND expires < ?1 ORDER BY expires, id LIMIT ?2

-- name: expire_done
SELECT finished + ?3, id FROM stoker_done
WHERE status = 3 AND expires - finished = ?3 AND finished < ?1 - ?3
ORDER BY finished, id
LIMIT ?2

-- name: done_keeps
-- The next retention that done jobs have.
SELECT expires - finished FROM stoker_done
WHERE status = 3 AND expires - finished > ?1
ORDER BY expires - finished
LIMIT 1

-- name: expire_finished
SELECT coalesce(sum(n), 0) FROM stoker_counts WHERE what BETWEEN 3 AND 7

-- name: expire_events
-- Blocks whose last event is older.
DELETE FROM stoker_events WHERE first < ?1 AND last < ?1 RETURNING count

-- name: expire_remembered
DELETE FROM stoker_remembered WHERE at < ?1 RETURNING 1

-- name: expire_removed
-- Removals of jobs when no block that may hold events of them is left, and none can come any more; some of them.
DELETE FROM stoker_removed WHERE job IN (
    SELECT r.job FROM stoker_removed AS r
    WHERE
        r.block < coalesce((SELECT min(n) FROM stoker_events), 9223372036854775807)
        AND r.at < min(?1, coalesce((SELECT min(first) FROM stoker_events), 9223372036854775807))
    ORDER BY r.block
    LIMIT ?2
)

-- name: expire_kind_points
DELETE FROM stoker_points WHERE bucket >= ?1 AND bucket < ?2 AND substr(metric, 1, 5) = 'kind_' RETURNING 1

-- name: expire_points
DELETE FROM stoker_points WHERE bucket < ?1 RETURNING 1

-- name: expire_presences
DELETE FROM stoker_presences WHERE seen < ?1 RETURNING 1

-- name: expire_workers
DELETE FROM stoker_workers
WHERE wid <= (SELECT max(wid) FROM stoker_workers) - ?1
    AND lease_until IS NULL
    AND wid NOT IN (SELECT former FROM stoker_running WHERE former IS NOT NULL)

-- name: expire_locks
DELETE FROM stoker_locks WHERE until <= ?1 RETURNING 1

-- name: expire_keys
DELETE FROM stoker_dedupe WHERE until <= ?1 RETURNING 1

-- name: expire_received
DELETE FROM stoker_received
WHERE (source, id) IN (SELECT source, id FROM stoker_received WHERE until <= ?1 ORDER BY until LIMIT ?2)
RETURNING 1

-- name: expire_audit
DELETE FROM stoker_audit WHERE at < ?1 RETURNING 1

-- name: expire_operations
DELETE FROM stoker_documents
WHERE kind = 'operations' AND COALESCE(json_extract(CAST(document AS TEXT), '$.seen'), 0) < ?1
RETURNING 1
