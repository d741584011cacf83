-- name: delta
-- What a transaction changed in the counts, one row per queue and kind.
INSERT INTO stoker.delta (
    queue, kind, pending, running, retrying, done, dead, canceled, discarded, retried,
    enqueued, completed, retries, failed, cancels
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::int[], $4::int[], $5::int[], $6::int[], $7::int[], $8::int[], $9::int[],
    $10::int[], $11::int[], $12::int[], $13::int[], $14::int[], $15::int[]
)

-- name: queue_write
-- A queue's settings and cool-down.
INSERT INTO stoker.queue (
    name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens, refilled,
    keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair, limits
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
ON CONFLICT (name) DO UPDATE SET
    paused = excluded.paused, paused_until = excluded.paused_until, paused_reason = excluded.paused_reason,
    paused_by = excluded.paused_by, workers = excluded.workers, rate_n = excluded.rate_n,
    rate_per = excluded.rate_per, rate_burst = excluded.rate_burst, tokens = excluded.tokens,
    refilled = excluded.refilled, keep_done = excluded.keep_done, keep_dead = excluded.keep_dead,
    curve_on = excluded.curve_on, curve_base = excluded.curve_base, curve_max = excluded.curve_max,
    cool_until = excluded.cool_until, cool_count = excluded.cool_count, declared = excluded.declared,
    fair = excluded.fair, limits = excluded.limits

-- name: known
SELECT id, kind, queue FROM stoker.job WHERE id = ANY($1::uuid[])

-- name: lock_ready
-- Lock those of the jobs that wait. Claims step over a locked row.
SELECT id FROM stoker.ready WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE

-- name: lock_done
SELECT id FROM stoker.done WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE

-- name: lock_leases
-- Lock the leases of those of the jobs that run: lease, bit, number of bits. A settlement waits for the lock. Arrays are
-- compared element by element, so for more than a few jobs everything that runs is looked up in a hash of them instead.
SELECT u.id, l.id, u.pos::int - 1, length(l.open)
FROM stoker.lease AS l CROSS JOIN unnest(l.ids) WITH ORDINALITY AS u (id, pos)
WHERE
    (cardinality($1::uuid[]) > 20 OR l.ids && $1::uuid[])
    AND (u.id IN (SELECT unnest($1::uuid[]))) IS TRUE
    AND get_bit(l.open, u.pos::int - 1) = 1
ORDER BY l.id
FOR UPDATE OF l

-- name: take_keys
-- Take keys that are free, in their order; returns those. Waits for another transaction that takes or releases one.
INSERT INTO stoker.dedupe (slot, id, firm)
SELECT u.slot, u.id, u.firm FROM unnest($1::text[], $2::uuid[], $3::boolean[]) AS u (slot, id, firm) ORDER BY u.slot
ON CONFLICT (slot) DO NOTHING
RETURNING slot

-- name: holders
-- The holders of keys, and how each of them waits (no status: it runs, or keeps the key until an instant), in a snapshot
-- later than that of `take_keys`.
SELECT d.slot, d.id, d.firm, (SELECT r.status FROM stoker.ready AS r WHERE r.id = d.id) AS status, d.until
FROM stoker.dedupe AS d WHERE d.slot = ANY($1::text[])

-- name: pass_keys
-- Keys that this transaction holds pass to other jobs, or are held more or less firmly.
UPDATE stoker.dedupe AS d SET id = u.id, firm = u.firm, until = NULL
FROM unnest($1::text[], $2::uuid[], $3::boolean[]) AS u (slot, id, firm)
WHERE d.slot = u.slot

-- name: keep_keys
-- Keys that their jobs keep until an instant, after their success.
UPDATE stoker.dedupe AS d SET until = u.until
FROM unnest($1::text[], $2::uuid[], $3::bigint[]) AS u (slot, id, until)
WHERE d.slot = u.slot AND d.id = u.id

-- name: lapse_keys
-- Release keys that were kept until $2, in their order.
DELETE FROM stoker.dedupe WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM stoker.dedupe WHERE slot = ANY($1::text[]) AND until <= $2::bigint ORDER BY slot FOR UPDATE
))

-- name: release_keys
-- Release keys in their order, each only if that job holds it.
DELETE FROM stoker.dedupe WHERE ctid = ANY(ARRAY(
    SELECT d.ctid FROM unnest($1::text[], $2::uuid[]) AS u (slot, id), stoker.dedupe AS d
    WHERE d.slot = u.slot AND d.id = u.id ORDER BY d.slot FOR UPDATE OF d
))

-- name: release_all_keys
-- Release whatever these jobs hold: their keys cannot be read.
DELETE FROM stoker.dedupe WHERE id = ANY($1::uuid[])

-- name: ready_drop
DELETE FROM stoker.ready WHERE id = ANY($1::uuid[])

-- name: done_drop
DELETE FROM stoker.done WHERE id = ANY($1::uuid[])

-- name: lease_close
-- Take running jobs from their workers, one mask for each lease, which is locked. `lease_drop` deletes a lease of which no
-- bit stays open.
UPDATE stoker.lease AS l SET open = l.open & ~m.mask::varbit
FROM unnest($1::bigint[], $2::text[]) AS m (id, mask)
WHERE l.id = m.id AND l.id = ANY($1::bigint[]) AND bit_count(l.open & ~m.mask::varbit) > 0

-- name: lease_drop
-- Delete leases of which every open bit is in its mask.
DELETE FROM stoker.lease AS l USING unnest($1::bigint[], $2::text[]) AS m (id, mask)
WHERE l.id = m.id AND l.id = ANY($1::bigint[]) AND bit_count(l.open & ~m.mask::varbit) = 0

-- name: lease_ask
-- Ask running jobs to stop: one mask for each lease, whatever number of its jobs are meant.
UPDATE stoker.lease AS l SET cancel = coalesce(l.cancel, l.open # l.open) | m.mask::varbit
FROM unnest($1::bigint[], $2::text[]) AS m (id, mask)
WHERE l.id = m.id AND l.id = ANY($1::bigint[])

-- name: swap_failure
-- Errors in another form, by their former text.
UPDATE stoker.failure AS f SET error = u.sealed
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS u (id, error, sealed)
WHERE f.id = u.id AND f.error = u.error

-- name: trim
-- A history keeps its newest entries.
DELETE FROM stoker.failure AS f USING unnest($1::uuid[]) AS u (id)
WHERE
    f.id = u.id AND f.attempt IS NOT NULL
    AND f.n <= (
        SELECT o.n FROM stoker.failure AS o WHERE o.id = u.id AND o.attempt IS NOT NULL
        ORDER BY o.n DESC OFFSET $2::int LIMIT 1
    )

-- name: trouble
-- The last errors of kinds; a success is noted only where it clears one.
INSERT INTO stoker.trouble (kind, error)
SELECT u.kind, u.error FROM unnest($1::text[], $2::text[]) AS u (kind, error)
WHERE
    u.error IS NOT NULL
    OR (SELECT v.error FROM stoker.trouble AS v WHERE v.kind = u.kind ORDER BY v.n DESC LIMIT 1) IS NOT NULL

-- name: erase_job
DELETE FROM stoker.job WHERE id = ANY($1::uuid[])

-- name: erase_past
DELETE FROM stoker.past WHERE id = ANY($1::uuid[])

-- name: erase_failure
DELETE FROM stoker.failure WHERE id = ANY($1::uuid[])

-- name: remove_events
-- Hide the events of jobs that go: those that are stored, and those up to an instant that come later. Nothing to hide in
-- a store without events, unless some may come later.
INSERT INTO stoker.removed (job, block, at)
SELECT u.job, coalesce(b.n, 0), $2::bigint
FROM unnest($1::uuid[]) AS u (job)
LEFT JOIN (SELECT n FROM stoker.event WHERE n > 0 ORDER BY n DESC LIMIT 1) AS b ON true
WHERE b.n IS NOT NULL OR $2 >= 0
ON CONFLICT (job) DO UPDATE SET block = excluded.block, at = greatest(removed.at, excluded.at)

-- name: placeless
-- Those of the jobs that are stored and neither wait nor run nor are finished.
SELECT j.id
FROM stoker.job AS j
WHERE
    j.id = ANY($1::uuid[])
    AND NOT EXISTS (SELECT 1 FROM stoker.ready AS r WHERE r.id = j.id)
    AND NOT EXISTS (SELECT 1 FROM stoker.done AS d WHERE d.id = j.id)
    AND NOT EXISTS (
        SELECT 1 FROM stoker.lease AS l
        WHERE l.ids @> ARRAY[j.id] AND get_bit(l.open, array_position(l.ids, j.id) - 1) = 1
    )

-- name: group_share
-- Groups that jobs are going to join: they cannot be closed before the commit.
SELECT id, sealed, abandoned, closed, placed FROM stoker.job_group WHERE id = ANY($1::uuid[]) ORDER BY id FOR SHARE

-- name: group_own
-- The same for a group whose maker places drafts in it: one call at a time.
SELECT id FROM stoker.job_group WHERE id = $1::uuid FOR NO KEY UPDATE

-- name: group_place
UPDATE stoker.job_group SET placed = $2::int WHERE id = $1::uuid

-- name: known_options
SELECT id, options FROM stoker.job WHERE id = ANY($1::uuid[])

-- name: group_make
INSERT INTO stoker.job_group (
    id, created, touched, closed, expires, total, done, dead, canceled, sealed, abandoned, queue, callbacks, members,
    placed
)
VALUES (
    $1::uuid, $2::bigint, $2::bigint, NULL, NULL, $3::int, 0, 0, 0, $4::boolean, $5::boolean, $6::text, $7::text,
    $8::uuid[], 0
)
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: group_join
INSERT INTO stoker.group_change (id, at, total, done, dead, canceled, queue, members)
VALUES ($1::uuid, $2::bigint, $3::int, $4::int, $5::int, $6::int, $7::text, $8::uuid[])

-- name: group_change
-- What a transaction changed about groups that no job joined.
INSERT INTO stoker.group_change (id, at, total, done, dead, canceled)
SELECT u.id, $2::bigint, u.total, u.done, u.dead, u.canceled
FROM unnest($1::uuid[], $3::int[], $4::int[], $5::int[], $6::int[]) AS u (id, total, done, dead, canceled)

-- name: bring
-- Bodies of jobs of another store.
INSERT INTO stoker.job (id, created, due, budget, priority, utraits, queue, kind, payload, ukey, tenant, options)
SELECT * FROM unnest(
    $1::uuid[], $2::bigint[], $3::bigint[], $4::int[], $5::smallint[], $6::bigint[], $7::text[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::text[]
)
ON CONFLICT DO NOTHING
RETURNING id
