-- name: renew
-- Extends a lease and shows everything stored under the worker. No row: the worker is unknown.
WITH t AS MATERIALIZED (
    SELECT coalesce($1::bigint, stoker.clock()) AS now, set_config('synchronous_commit', 'off', true) AS lax
), w AS (
    UPDATE stoker.worker AS w SET until = t.now + $3::bigint, lease = $3::bigint FROM t
    WHERE w.name = $2::text RETURNING t.now
)
SELECT
    w.now, l.id, l.token, l.claimed, l.open::text, l.cancel::text, l.ids,
    (SELECT d.document FROM stoker.document AS d WHERE d.kind = 'orders' AND d.name = $2::text)
FROM w LEFT JOIN stoker.lease AS l ON l.worker = $2::text

-- name: enlist
-- The first lease of a worker that was never reaped.
INSERT INTO stoker.worker (name, until, lease)
SELECT $2::text, coalesce($1::bigint, stoker.clock()) + $3::bigint, $3::bigint
WHERE NOT EXISTS (SELECT 1 FROM stoker.retired AS r WHERE r.name = $2::text)
ON CONFLICT (name) DO NOTHING

-- name: living
-- Every worker with the end of its lease. While the server was down no worker could renew: by its own clock no lease ends
-- sooner than its own length after it came up.
SELECT
    name,
    CASE
        WHEN $1::bigint IS NOT NULL THEN until
        ELSE greatest(until, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint + lease)
    END
FROM stoker.worker

-- name: owners
-- Under whom anything is stored, name by name from the index: also those that were reaped while a claim was on its way.
WITH RECURSIVE o (name) AS (
    (SELECT worker FROM stoker.lease ORDER BY worker LIMIT 1)
    UNION ALL
    SELECT (SELECT l.worker FROM stoker.lease AS l WHERE l.worker > o.name ORDER BY l.worker LIMIT 1)
    FROM o WHERE o.name IS NOT NULL
)
SELECT name FROM o WHERE name IS NOT NULL

-- name: reap_hold
-- Holds workers that are about to be reaped, unless they have renewed since, or another worker reaps them.
SELECT name FROM stoker.worker
WHERE name = ANY($1::text[]) AND (until <= $2::bigint OR name = ANY($3::text[]))
ORDER BY name FOR UPDATE SKIP LOCKED

-- name: reap_oldest
SELECT id, claimed, open::text, ids FROM stoker.lease
WHERE worker = ANY($1::text[]) ORDER BY claimed, id LIMIT $2::int FOR UPDATE SKIP LOCKED

-- name: reap_take
-- The claims at these positions pass to another worker under a new token, in leases of their own: `Record.reaped`.
WITH u AS MATERIALIZED (
    SELECT lease, mask::varbit AS mask FROM unnest($3::bigint[], $4::text[]) AS u (lease, mask)
), n AS (
    INSERT INTO stoker.lease (id, token, claimed, former_at, worker, queue, former, open, cancel, attempts, ids)
    SELECT
        nextval('stoker.lease_number'), greatest($1::bigint, l.token + 1), $1::bigint, l.claimed, $2::text, l.queue,
        l.worker, u.mask, l.cancel, l.attempts, l.ids
    FROM u JOIN stoker.lease AS l ON l.id = u.lease AND l.id = ANY($3::bigint[])
    RETURNING id, open, ids
), x AS (
    UPDATE stoker.lease AS l SET open = l.open & ~u.mask FROM u
    WHERE l.id = u.lease AND l.id = ANY($3::bigint[]) AND bit_count(l.open & ~u.mask) > 0
), y AS (
    DELETE FROM stoker.lease AS l USING u WHERE l.id = u.lease AND l.id = ANY($3::bigint[]) AND bit_count(l.open & ~u.mask) = 0
)
SELECT id, open::text, ids FROM n

-- name: retire
-- Workers under whom nothing is stored become unknown, and so do names that were never seen.
WITH gone AS (
    DELETE FROM stoker.worker AS w
    WHERE
        w.name = ANY($2::text[])
        AND NOT EXISTS (SELECT 1 FROM stoker.lease AS l WHERE l.worker = w.name)
    RETURNING w.name
)
INSERT INTO stoker.retired (name, at)
SELECT name, $1::bigint FROM gone UNION SELECT s.name, $1::bigint FROM unnest($3::text[]) AS s (name)
ON CONFLICT (name) DO NOTHING

-- name: reap_unlock
DELETE FROM stoker.lock WHERE owner = ANY($1::text[]) RETURNING name
