-- name: queues
SELECT
    name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens, refilled,
    keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair, limits
FROM stoker_queues
ORDER BY name

-- name: budget
SELECT name, rate_n, rate_per, rate_burst, tokens, refilled, declared FROM stoker_budgets WHERE name = ?1

-- name: budgets
SELECT name, rate_n, rate_per, rate_burst, tokens, refilled, declared FROM stoker_budgets ORDER BY name

-- name: budget_make
INSERT INTO stoker_budgets (name, rate_n, rate_per, rate_burst, tokens, refilled, declared)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
RETURNING name

-- name: budget_write
UPDATE stoker_budgets SET
    rate_n = ?2, rate_per = ?3, rate_burst = ?4, tokens = ?5, refilled = ?6, declared = ?7
WHERE name = ?1

-- name: lock
SELECT owner, until FROM stoker_locks WHERE name = ?1

-- name: lock_make
INSERT INTO stoker_locks (name, owner, until) VALUES (?1, ?2, ?3) RETURNING name

-- name: lock_write
UPDATE stoker_locks SET owner = ?2, until = ?3 WHERE name = ?1

-- name: unlock
DELETE FROM stoker_locks WHERE name = ?1

-- name: beat
INSERT INTO stoker_presences (worker, seen, presence) VALUES (?1, ?2, ?3)
ON CONFLICT (worker) DO UPDATE SET seen = excluded.seen, presence = excluded.presence

-- name: presences
SELECT presence FROM stoker_presences ORDER BY worker
