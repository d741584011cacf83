-- name: find_waiting
SELECT id, seq FROM stoker_ready WHERE qid = ?1
UNION ALL
SELECT r.id, r.seq
FROM stoker_subqueues AS s
CROSS JOIN stoker_ready AS r ON r.qid = -s.sid
WHERE s.qid = ?1

-- name: find_lines
SELECT -sid FROM stoker_subqueues WHERE qid = ?1

-- name: find_running
SELECT b.id, n.seq FROM stoker_running AS n CROSS JOIN stoker_body AS b ON b.seq = n.seq

-- name: find_counts
SELECT qid, what, sum(n) FROM stoker_counts WHERE what IN (0, 1, 2) GROUP BY qid, what

-- name: ended
SELECT
    EXISTS (SELECT 1 FROM stoker_done WHERE id = ?1) OR NOT EXISTS (SELECT 1 FROM stoker_body WHERE id = ?1)

-- name: errors
SELECT seq, at, attempt, error, origin FROM stoker_errors
WHERE seq IN (SELECT value FROM json_each(?1)) AND attempt IS NOT NULL
ORDER BY seq, n

-- name: get_running_many
-- What `get_running` tells, of the jobs with these numbers (a list in JSON).
SELECT n.seq, w.wid, w.name, f.name, n.former_at, n.token, n.attempts, n.claimed, n.cancel
FROM stoker_workers AS w
CROSS JOIN stoker_running AS n ON n.wid = w.wid AND n.seq IN (SELECT value FROM json_each(?1))
LEFT JOIN stoker_workers AS f ON f.wid = n.former
WHERE w.lease_until IS NOT NULL
