-- name: queues
SELECT
    name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens, refilled,
    keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair, limits
FROM stoker_queues
ORDER BY name

-- name: budget
SELECT name, budget FROM stoker_budgets WHERE name = ?1

-- name: budget_seen
SELECT name, budget FROM stoker_budgets WHERE name = ?1

-- name: budgets
SELECT name, budget FROM stoker_budgets ORDER BY name

-- name: budget_make
INSERT INTO stoker_budgets (name, budget) VALUES (?1, ?2) RETURNING name

-- name: budget_write
UPDATE stoker_budgets SET budget = ?2 WHERE name = ?1

-- name: budget_key
SELECT b.name, b.budget, (SELECT k.buckets FROM stoker_budget_keys AS k WHERE k.name = ?1 AND k.key = ?2)
FROM stoker_budgets AS b WHERE b.name = ?1

-- name: budget_key_make
INSERT INTO stoker_budget_keys (name, key, buckets, full_at) VALUES (?1, ?2, ?3, ?4) RETURNING key

-- name: budget_key_write
UPDATE stoker_budget_keys SET buckets = ?3, full_at = ?4 WHERE name = ?1 AND key = ?2

-- name: budget_keys
SELECT key, buckets FROM stoker_budget_keys WHERE name = ?1 ORDER BY full_at DESC, key DESC LIMIT ?2

-- name: budget_keys_named
SELECT k.key, k.buckets
FROM json_each(?3) AS j CROSS JOIN stoker_budget_keys AS k ON k.name = ?1 AND k.key = j.value
ORDER BY k.full_at DESC, k.key DESC
LIMIT ?2

-- name: budget_keys_forget
DELETE FROM stoker_budget_keys
WHERE (name, key) IN (
    SELECT k.name, k.key FROM json_each(?1) AS b CROSS JOIN stoker_budget_keys AS k ON k.name = b.value AND k.full_at <= ?2
    LIMIT ?3
)
RETURNING 1

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
