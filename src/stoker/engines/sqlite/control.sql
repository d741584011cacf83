-- name: queues
SELECT
    qid, name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens,
    refilled, keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair, limits,
    EXISTS (SELECT 1 FROM stoker_subqueues AS s WHERE s.qid = stoker_queues.qid)
FROM stoker_queues
ORDER BY name

-- name: budget
SELECT name, rate_n, rate_per, rate_burst, tokens, refilled, declared FROM stoker_budgets WHERE name = ?1

-- name: budgets
SELECT name, rate_n, rate_per, rate_burst, tokens, refilled, declared FROM stoker_budgets ORDER BY name

-- name: budget_write
INSERT INTO stoker_budgets (name, rate_n, rate_per, rate_burst, tokens, refilled, declared)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (name) DO UPDATE SET
    rate_n = excluded.rate_n,
    rate_per = excluded.rate_per,
    rate_burst = excluded.rate_burst,
    tokens = excluded.tokens,
    refilled = excluded.refilled,
    declared = excluded.declared

-- name: lock
SELECT owner, until FROM stoker_locks WHERE name = ?1

-- name: lock_write
INSERT INTO stoker_locks (name, owner, until) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until

-- name: unlock
DELETE FROM stoker_locks WHERE name = ?1

-- name: beat
INSERT INTO stoker_presences (worker, seen, presence) VALUES (?1, ?2, ?3)
ON CONFLICT (worker) DO UPDATE SET seen = excluded.seen, presence = excluded.presence

-- name: presences
SELECT presence FROM stoker_presences ORDER BY worker
