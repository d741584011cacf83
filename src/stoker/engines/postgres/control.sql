-- name: queues
-- Every queue that was tuned, cooled or used; one that has no row of its own answers with its name alone.
WITH used AS (
    SELECT queue AS name FROM stoker.tally
    UNION
    SELECT queue FROM stoker.delta
    UNION
    SELECT name FROM stoker.queue
)
SELECT
    u.name, q.paused, q.paused_until, q.paused_reason, q.paused_by, q.workers, q.rate_n, q.rate_per, q.rate_burst,
    q.tokens, q.refilled, q.keep_done, q.keep_dead, q.curve_on, q.curve_base, q.curve_max, q.cool_until,
    q.cool_count, q.declared, q.fair, q.limits
FROM used AS u LEFT JOIN stoker.queue AS q ON q.name = u.name
ORDER BY u.name

-- name: queues_named
SELECT
    name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens, refilled,
    keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair, limits
FROM stoker.queue WHERE name = ANY($1::text[])

-- name: queue_hold
-- A queue's row, held until the transaction ends.
SELECT
    name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens, refilled,
    keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair, limits
FROM stoker.queue WHERE name = $1 FOR UPDATE

-- name: subqueue_repin
-- The subqueues of the limits $2, also those that so far only the log knows, are to be looked at.
INSERT INTO stoker.subqueue_log (queue, name, look)
SELECT $1, s.name, 0
FROM (
    SELECT name FROM stoker.subqueue WHERE queue = $1
    UNION
    SELECT name FROM stoker.subqueue_log WHERE queue = $1
) AS s
WHERE split_part(s.name, '/', 1) = ANY($2::text[])

-- name: queue_lock
-- A queue's row, held until the transaction ends; made when it is not there yet.
INSERT INTO stoker.queue AS q (
    name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens, refilled,
    keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair, limits
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
ON CONFLICT (name) DO UPDATE SET name = q.name
RETURNING
    name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens, refilled,
    keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair, limits

-- name: budgets
SELECT name, budget FROM stoker.budget ORDER BY name

-- name: budget
SELECT name, budget FROM stoker.budget WHERE name = $1 FOR UPDATE

-- name: budget_seen
SELECT name, budget FROM stoker.budget WHERE name = $1

-- name: budget_make
-- No row in the answer: another transaction was faster.
INSERT INTO stoker.budget (name, budget) VALUES ($1, $2)
ON CONFLICT (name) DO NOTHING
RETURNING name

-- name: budget_write
UPDATE stoker.budget SET budget = $2 WHERE name = $1

-- name: budget_key
-- A budget, and the buckets of one of its keys: only these are locked.
WITH k AS MATERIALIZED (
    SELECT buckets FROM stoker.budget_key WHERE name = $1 AND key = $2 FOR UPDATE
)
SELECT b.name, b.budget, (SELECT k.buckets FROM k) FROM stoker.budget AS b WHERE b.name = $1

-- name: budget_key_make
-- No row in the answer: another transaction was faster.
INSERT INTO stoker.budget_key (name, key, buckets, full_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (name, key) DO NOTHING
RETURNING key

-- name: budget_key_write
UPDATE stoker.budget_key SET buckets = $3, full_at = $4 WHERE name = $1 AND key = $2

-- name: budget_keys
SELECT key, buckets FROM stoker.budget_key WHERE name = $1 ORDER BY full_at DESC, key DESC LIMIT $2

-- name: budget_keys_named
-- The named keys are found first: in the order of the other index Postgres might walk over all keys of the budget.
WITH found AS MATERIALIZED (
    SELECT key, buckets, full_at FROM stoker.budget_key WHERE name = $1 AND key = ANY($3::text[])
)
SELECT key, buckets FROM found ORDER BY full_at DESC, key DESC LIMIT $2

-- name: budget_keys_forget
-- A key that is spent from at this moment is skipped; afterwards it is not full. The rows are found along the index and
-- deleted where they stand: a join reads the whole table for each batch.
DELETE FROM stoker.budget_key AS d
WHERE d.ctid = ANY(ARRAY(
    SELECT k.ctid
    FROM unnest($1::text[]) AS n (name)
    CROSS JOIN LATERAL (
        SELECT f.ctid FROM stoker.budget_key AS f
        WHERE f.name = n.name AND f.full_at <= $2
        ORDER BY f.full_at LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS k
    LIMIT $3
))
RETURNING 1

-- name: lock
SELECT owner, until FROM stoker.lock WHERE name = $1 FOR UPDATE

-- name: lock_make
-- No row in the answer: another transaction was faster.
INSERT INTO stoker.lock (name, owner, until) VALUES ($1, $2, $3)
ON CONFLICT (name) DO NOTHING
RETURNING name

-- name: lock_write
UPDATE stoker.lock SET owner = $2, until = $3 WHERE name = $1

-- name: unlock
DELETE FROM stoker.lock WHERE name = $1

-- name: beat
INSERT INTO stoker.presence (worker, seen, presence) VALUES ($1, $2, $3)
ON CONFLICT (worker) DO UPDATE SET seen = excluded.seen, presence = excluded.presence

-- name: presences
SELECT presence FROM stoker.presence ORDER BY worker
