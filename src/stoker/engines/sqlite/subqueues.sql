-- name: subqueue
SELECT
    sid, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker_subqueues
WHERE qid = ?1 AND name = ?2

-- name: subqueues_named
SELECT
    sid, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker_subqueues
WHERE qid = ?1 AND name IN (SELECT value FROM json_each(?2))

-- name: subqueue_by_line
SELECT
    qid, sid, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker_subqueues
WHERE sid = -?1

-- name: subqueue_write
INSERT INTO stoker_subqueues (
    qid, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since, open
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)
ON CONFLICT (qid, name) DO UPDATE SET
    limited = excluded.limited,
    number = excluded.number,
    pinned = excluded.pinned,
    running = excluded.running,
    rate_n = excluded.rate_n,
    rate_per = excluded.rate_per,
    rate_burst = excluded.rate_burst,
    tokens = excluded.tokens,
    refilled = excluded.refilled,
    priority = excluded.priority,
    due = excluded.due,
    id = excluded.id,
    next = excluded.next,
    at = excluded.at,
    turn = excluded.turn,
    since = excluded.since,
    open = excluded.open
RETURNING sid

-- name: subqueue_change
-- The same for a subqueue that is there.
UPDATE stoker_subqueues
SET (
    limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since, open
) = (?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)
WHERE qid = ?1 AND name = ?2

-- name: subqueue_drop
DELETE FROM stoker_subqueues WHERE qid = ?1 AND name = ?2

-- name: subqueues_touched
SELECT
    sid, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker_subqueues
WHERE qid = ?1 AND next <= ?2
ORDER BY next, name
LIMIT ?3

-- name: subqueues_by_head
-- Not those that are touched: their head may be gone.
SELECT
    sid, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker_subqueues
WHERE qid = ?1 AND open = 1 AND (next IS NULL OR next > ?2)
ORDER BY priority, due, id
LIMIT ?3

-- name: subqueues_by_turn
-- Not those that are touched: their head may be gone.
SELECT
    sid, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker_subqueues
WHERE qid = ?1 AND open = 1 AND (next IS NULL OR next > ?2)
ORDER BY at, turn, name
LIMIT ?3

-- name: subqueue_look
-- What each of the lines ?1 holds, priority by priority: its first job, and the first one that is due after ?2.
WITH RECURSIVE p (line, priority) AS (
    SELECT l.value, (SELECT min(r.priority) FROM stoker_ready AS r WHERE r.qid = l.value)
    FROM json_each(?1) AS l
    UNION ALL
    SELECT p.line, (SELECT min(r.priority) FROM stoker_ready AS r WHERE r.qid = p.line AND r.priority > p.priority)
    FROM p
    WHERE p.priority IS NOT NULL
)
SELECT
    p.line,
    p.priority,
    (SELECT r.due FROM stoker_ready AS r WHERE r.qid = p.line AND r.priority = p.priority ORDER BY r.due, r.id LIMIT 1),
    (SELECT r.id FROM stoker_ready AS r WHERE r.qid = p.line AND r.priority = p.priority ORDER BY r.due, r.id LIMIT 1),
    (SELECT r.due FROM stoker_ready AS r WHERE r.qid = p.line AND r.priority = p.priority AND r.due > ?2
     ORDER BY r.due LIMIT 1)
FROM p
WHERE p.priority IS NOT NULL
ORDER BY p.line, p.priority

-- name: subqueue_first
SELECT due, id FROM stoker_ready
WHERE qid = ?1 AND priority = ?2 AND due <= ?3
ORDER BY due, id
LIMIT ?4

-- name: subqueue_take
INSERT INTO stoker_running (wid, seq, token, qid, attempts, claimed, cancel)
SELECT ?5, seq, max(?6, token + 1), ?7, attempts + 1, ?6, 0
FROM stoker_ready
WHERE qid = ?1 AND priority = ?2 AND (due, id) <= (?3, ?4)

-- name: subqueues
SELECT
    sid, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker_subqueues
WHERE qid = ?1 AND name > ?2
ORDER BY name
LIMIT ?3

-- name: subqueues_of_queue
SELECT
    sid, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker_subqueues
WHERE qid = ?1

-- name: subqueue_holders
-- The jobs that hold slots of a subqueue: those that run, and those that wait in the main line with the slot they kept.
SELECT b.id, b.options
FROM stoker_running AS n
CROSS JOIN stoker_body AS b ON b.seq = n.seq
WHERE n.qid = ?1 AND b.options IS NOT NULL
UNION ALL
SELECT b.id, b.options
FROM stoker_ready AS r
CROSS JOIN stoker_body AS b ON b.seq = r.seq
WHERE r.qid = ?1 AND r.past = 1 AND r.settled IN (0, 2, 8, 9) AND b.options IS NOT NULL

-- name: subqueue_waiting
SELECT count(*) FROM stoker_ready WHERE qid = ?1 AND due <= ?2

-- name: subqueues_full
-- Subqueues that have been full since ?1 or before.
SELECT
    qid, sid, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker_subqueues
WHERE since <= ?1

-- name: queue_claims_read
SELECT claims FROM stoker_queues WHERE qid = ?1

-- name: queue_claims
UPDATE stoker_queues SET claims = claims + 1 WHERE qid = ?1 RETURNING claims
