-- name: running_lost
DELETE FROM stoker_running WHERE seq = ?1

-- name: claim_priority
SELECT priority FROM stoker_ready WHERE qid = ?1 AND priority > ?2 ORDER BY priority LIMIT 1

-- name: claim_take
INSERT INTO stoker_running (wid, seq, token, qid, attempts, claimed, cancel)
SELECT ?5, seq, max(?6, token + 1), qid, attempts + 1, ?6, 0
FROM stoker_ready
WHERE qid = ?1 AND priority = ?2 AND (due, id) <= (?3, ?4)

-- name: claim_drop
-- No `due <= now` here: it would make the planner walk the whole due range.
DELETE FROM stoker_ready WHERE qid = ?1 AND priority = ?2 AND (due, id) <= (?3, ?4)

-- name: claim_past
SELECT
    p.base,
    p.crashes,
    p.throttles,
    p.metadata,
    (SELECT e.error FROM stoker_errors AS e WHERE e.seq = p.seq ORDER BY e.n DESC LIMIT 1)
FROM stoker_past AS p
WHERE p.seq = ?1

-- name: key_hold_strong
UPDATE stoker_dedupe SET weak = 0 WHERE slot = ?1 AND seq = ?2

-- name: queue_due_names
-- All queues, and whether a subqueue of each has a job that may start by ?1.
SELECT
    q.qid,
    q.name,
    EXISTS (SELECT 1 FROM stoker_subqueues AS s WHERE s.qid = q.qid AND s.open = 1)
    OR EXISTS (
        SELECT 1 FROM stoker_subqueues AS s
        WHERE s.qid = q.qid AND s.next <= ?1 AND s.running < coalesce(s.pinned, s.number, s.running + 1)
    )
FROM stoker_queues AS q

-- name: queue_due
SELECT 1 FROM stoker_ready WHERE qid = ?1 AND priority = ?2 AND due <= ?3 LIMIT 1

-- name: queue_open
SELECT
    q.qid, q.paused, q.paused_until, q.cool_until, q.rate_n, q.rate_per, q.rate_burst, q.tokens, q.refilled,
    (SELECT s.due FROM stoker_subqueues AS s WHERE s.qid = q.qid AND s.open = 1 LIMIT 1),
    (
        SELECT s.next FROM stoker_subqueues AS s
        WHERE s.qid = q.qid AND s.next IS NOT NULL AND s.running < coalesce(s.pinned, s.number, s.running + 1)
        ORDER BY s.next
        LIMIT 1
    )
FROM stoker_queues AS q
WHERE q.name = ?1

-- name: queue_first_due
SELECT due FROM stoker_ready WHERE qid = ?1 AND priority = ?2 ORDER BY due LIMIT 1
