-- name: clock_mark
UPDATE stoker_clock SET high = ?1

-- name: numbers
UPDATE stoker_clock SET seq = seq + ?1 RETURNING seq

-- name: queue
SELECT
    qid, name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens,
    refilled, keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair, limits,
    EXISTS (SELECT 1 FROM stoker_subqueues AS s WHERE s.qid = stoker_queues.qid)
FROM stoker_queues
WHERE name = ?1

-- name: queue_by_qid
SELECT
    qid, name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens,
    refilled, keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair, limits,
    EXISTS (SELECT 1 FROM stoker_subqueues AS s WHERE s.qid = stoker_queues.qid)
FROM stoker_queues
WHERE qid = ?1

-- name: queue_write
INSERT INTO stoker_queues (
    name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens,
    refilled, keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair,
    limits
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)
ON CONFLICT (name) DO UPDATE SET
    paused = excluded.paused,
    paused_until = excluded.paused_until,
    paused_reason = excluded.paused_reason,
    paused_by = excluded.paused_by,
    workers = excluded.workers,
    rate_n = excluded.rate_n,
    rate_per = excluded.rate_per,
    rate_burst = excluded.rate_burst,
    tokens = excluded.tokens,
    refilled = excluded.refilled,
    keep_done = excluded.keep_done,
    keep_dead = excluded.keep_dead,
    curve_on = excluded.curve_on,
    curve_base = excluded.curve_base,
    curve_max = excluded.curve_max,
    cool_until = excluded.cool_until,
    cool_count = excluded.cool_count,
    declared = excluded.declared,
    fair = excluded.fair,
    limits = excluded.limits
RETURNING qid

-- name: queue_tokens
UPDATE stoker_queues SET tokens = ?2, refilled = ?3 WHERE qid = ?1

-- name: worker
SELECT wid, lease_until FROM stoker_workers WHERE name = ?1

-- name: count
INSERT INTO stoker_counts (qid, kind, what, n)
VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (qid, kind, what) DO UPDATE SET n = n + excluded.n

-- name: get_running
SELECT w.wid, w.name, f.name, n.former_at, n.token, n.attempts, n.claimed, n.cancel
FROM stoker_workers AS w
CROSS JOIN stoker_running AS n ON n.wid = w.wid AND n.seq = ?1
LEFT JOIN stoker_workers AS f ON f.wid = n.former
WHERE w.lease_until IS NOT NULL

-- name: key_holder
SELECT b.id, d.job, d.until FROM stoker_dedupe AS d LEFT JOIN stoker_body AS b ON b.seq = d.seq WHERE d.slot = ?1

-- name: ready_drop
DELETE FROM stoker_ready WHERE qid = ?1 AND priority = ?2 AND due = ?3 AND id = ?4

-- name: running_drop
DELETE FROM stoker_running WHERE wid = ?1 AND seq = ?2

-- name: running_cancel
-- The moment of the first request stays.
UPDATE stoker_running SET cancel = ?3 WHERE wid = ?1 AND seq = ?2 AND cancel = 0

-- name: done_drop
DELETE FROM stoker_done WHERE id = ?1

-- name: body_line
UPDATE stoker_body SET line = ?2 WHERE seq = ?1

-- name: error_put
INSERT INTO stoker_errors (seq, at, attempt, origin, error) VALUES (?1, ?2, ?3, ?4, ?5)

-- name: error_swap
UPDATE stoker_errors SET error = ?3 WHERE seq = ?1 AND error = ?2

-- name: error_trim
DELETE FROM stoker_errors
WHERE seq = ?1 AND n <= (
    SELECT n FROM stoker_errors WHERE seq = ?1 AND attempt IS NOT NULL ORDER BY n DESC LIMIT 1 OFFSET ?2
)

-- name: trouble
INSERT INTO stoker_troubles (kind, error) VALUES (?1, ?2) ON CONFLICT (kind) DO UPDATE SET error = excluded.error

-- name: trouble_over
DELETE FROM stoker_troubles WHERE kind = ?1

-- name: key_hold
INSERT INTO stoker_dedupe (slot, seq, weak) VALUES (?1, ?2, ?3)
ON CONFLICT (slot) DO UPDATE SET seq = excluded.seq, weak = excluded.weak, until = NULL, job = NULL

-- name: key_keep
UPDATE stoker_dedupe SET weak = 0, until = ?4, job = ?3 WHERE slot = ?1 AND seq = ?2

-- name: key_give_up
DELETE FROM stoker_dedupe WHERE slot = ?1 AND job = ?2

-- name: key_release
DELETE FROM stoker_dedupe WHERE slot = ?1 AND seq = ?2

-- name: key_release_all
DELETE FROM stoker_dedupe WHERE seq = ?1

-- name: delete_body
DELETE FROM stoker_body WHERE seq = ?1

-- name: delete_errors
DELETE FROM stoker_errors WHERE seq = ?1

-- name: delete_past
DELETE FROM stoker_past WHERE seq = ?1

-- name: remove_events
-- Hide the events of a job that goes: those that are stored, and those up to an instant that come later. Nothing to hide in
-- a store without events, unless some may come later.
INSERT INTO stoker_removed (job, block, at)
SELECT ?1, coalesce((SELECT max(n) FROM stoker_events), 0), ?2
WHERE ?2 >= 0 OR EXISTS (SELECT 1 FROM stoker_events WHERE n > 0)
ON CONFLICT (job) DO UPDATE SET block = excluded.block, at = max(at, excluded.at)
