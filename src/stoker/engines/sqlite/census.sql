-- name: queue_names
SELECT qid, name FROM stoker_queues

-- name: census_counts
SELECT qid, kind, what, n FROM stoker_counts WHERE n > 0

-- name: census_troubles
SELECT kind, error FROM stoker_troubles

-- name: census_scheduled
SELECT count(*) FROM (
    SELECT 1 FROM stoker_ready WHERE qid = ?1 AND priority = ?2 AND due > ?3 AND status = 0 LIMIT ?4
)

-- name: census_due
SELECT count(*) FROM (
    SELECT 1 FROM stoker_ready WHERE qid = ?1 AND priority = ?2 AND due <= ?3 AND status = 0 LIMIT ?4
)

-- name: census_oldest
SELECT due FROM stoker_ready
WHERE qid = ?1 AND priority = ?2 AND due <= ?3 AND status = 0
ORDER BY due
LIMIT 1

-- name: census_subqueues
-- Waiting jobs of subqueues, by queue: how many are not due, and when the oldest due one became due.
SELECT
    s.qid,
    sum(r.due > ?1 AND r.status = 0),
    min(CASE WHEN r.due <= ?1 AND r.status = 0 THEN r.due END),
    sum(r.status = 0)
FROM stoker_subqueues AS s
CROSS JOIN stoker_ready AS r ON r.qid = -s.sid
GROUP BY s.qid

-- name: census_waiting
-- Suspended jobs that are not due, by queue and, with its queue, by subqueue.
SELECT coalesce(s.qid, w.qid), w.n
FROM (
    SELECT r.qid, count(*) AS n FROM stoker_ready AS r INDEXED BY stoker_ready_waiting
    WHERE r.settled IN (8, 9) AND r.due > ?1
    GROUP BY r.qid
) AS w
LEFT JOIN stoker_subqueues AS s ON s.sid = -w.qid

-- name: census_running
SELECT qid, min(claimed) FROM stoker_running GROUP BY qid
