-- name: groups
-- Groups, and what became of their members since they were folded.
SELECT
    g.id, g.created, g.touched, g.closed, g.expires, g.total, g.done, g.dead, g.canceled, g.sealed, g.abandoned,
    g.queue, g.callbacks, g.placed, g.members, c.total, c.done, c.dead, c.canceled, c.queue, c.members, c.at
FROM stoker.job_group AS g
LEFT JOIN stoker.group_change AS c ON c.id = g.id AND g.closed IS NULL
WHERE g.id = ANY($1::uuid[])
ORDER BY c.n

-- name: groups_open
-- Open groups behind a place ($1, $2), the latest first, at most $3, and what became of members since they were folded.
WITH p AS MATERIALIZED (
    SELECT id FROM stoker.job_group
    WHERE closed IS NULL AND (created, id) < ($1::bigint, $2::uuid)
    ORDER BY created DESC, id DESC LIMIT $3::int
)

SELECT
    g.id, g.created, g.touched, g.closed, g.expires, g.total, g.done, g.dead, g.canceled, g.sealed, g.abandoned,
    g.queue, g.callbacks, g.placed, '{}'::uuid[], c.total, c.done, c.dead, c.canceled, c.queue, c.members, c.at
FROM p
CROSS JOIN LATERAL (SELECT * FROM stoker.job_group WHERE id = p.id OFFSET 0) AS g
LEFT JOIN LATERAL (SELECT * FROM stoker.group_change WHERE id = p.id OFFSET 0) AS c ON true
ORDER BY g.created DESC, g.id DESC, c.n

-- name: groups_closed
-- Closed groups behind a place ($1, $2), the latest first, at most $3.
SELECT
    id, created, touched, closed, expires, total, done, dead, canceled, sealed, abandoned, queue, callbacks, placed,
    '{}'::uuid[], NULL::int, NULL::int, NULL::int, NULL::int, NULL, NULL::uuid[], NULL::bigint
FROM stoker.job_group
WHERE closed IS NOT NULL AND (created, id) < ($1::bigint, $2::uuid)
ORDER BY created DESC, id DESC LIMIT $3::int

-- name: group_lock
-- Open groups, each by one transaction at a time; one that jobs are joining now is left to a later sweep.
SELECT id, created, touched, closed, expires, total, done, dead, canceled, sealed, abandoned, queue, callbacks, placed
FROM stoker.job_group
WHERE id = ANY($1::uuid[]) AND closed IS NULL
ORDER BY id
FOR NO KEY UPDATE SKIP LOCKED

-- name: group_take_changes
DELETE FROM stoker.group_change
WHERE id = ANY($1::uuid[])
RETURNING id, n, total, done, dead, canceled, queue, members, at

-- name: group_write
UPDATE stoker.job_group SET
    touched = $2::bigint, closed = $3::bigint, expires = $4::bigint, total = $5::int, done = $6::int, dead = $7::int,
    canceled = $8::int, sealed = $9::boolean, abandoned = $10::boolean, queue = $11::text
WHERE id = $1::uuid

-- name: group_known
-- model.groups.known_members, before the group's total is written.
UPDATE stoker.job_group SET members = CASE
    WHEN total > 0 AND cardinality(members) = 0 OR cardinality(members) + cardinality($2::uuid[]) > $3::int THEN '{}'
    ELSE members || $2::uuid[]
END
WHERE id = $1::uuid

-- name: group_seal
UPDATE stoker.job_group SET sealed = true, abandoned = $2::boolean
WHERE id = $1::uuid AND NOT sealed
RETURNING id

-- name: groups_complete
-- Which of these groups seem to be complete (Group.complete); the transaction that closes them looks again.
SELECT g.id
FROM stoker.job_group AS g
LEFT JOIN LATERAL (
    SELECT sum(c.total - c.done - c.dead - c.canceled) AS waiting FROM stoker.group_change AS c WHERE c.id = g.id
) AS c ON true
WHERE
    g.id = ANY($1::uuid[]) AND g.sealed AND g.closed IS NULL
    AND g.total - g.done - g.dead - g.canceled + coalesce(c.waiting, 0) <= 0

-- name: groups_to_sweep
-- What a sweep has to do with which groups. `old`: it has changes from before $3, or is complete as it was folded.
WITH t AS MATERIALIZED (
    SELECT coalesce($1::bigint, stoker.clock()) AS now
)
(
    SELECT c.id, CASE WHEN min(c.at) < min(t.now) - $3::bigint THEN 'old' ELSE 'changed' END AS what
    FROM stoker.group_change AS c, t GROUP BY c.id LIMIT $2::int
)
UNION ALL (
    SELECT id, 'old' FROM stoker.job_group
    WHERE sealed AND closed IS NULL AND total <= done + dead + canceled LIMIT $2::int
)
UNION ALL (
    SELECT g.id, 'unsealed' FROM stoker.job_group AS g, t
    WHERE NOT g.sealed AND g.touched < t.now - $4::bigint ORDER BY g.touched LIMIT $2::int
)
UNION ALL (
    SELECT g.id, 'expired' FROM stoker.job_group AS g, t
    WHERE g.expires < t.now ORDER BY g.expires LIMIT $2::int
)

-- name: groups_expired
-- Groups past their retention, with their members; one that another sweep looks at is left to it.
SELECT
    id, created, touched, closed, expires, total, done, dead, canceled, sealed, abandoned, queue, callbacks, placed,
    members
FROM stoker.job_group
WHERE id = ANY($1::uuid[]) AND expires < $2::bigint
ORDER BY id
FOR UPDATE SKIP LOCKED

-- name: groups_expire
DELETE FROM stoker.job_group WHERE id = ANY($1::uuid[]) RETURNING id

-- name: groups_put_off
UPDATE stoker.job_group AS g SET expires = u.until
FROM unnest($1::uuid[], $2::bigint[]) AS u (id, until)
WHERE g.id = u.id

-- name: group_kept
-- When those of some jobs expire that are stored; NULL: it has not ended. One look into each index per job (ended.sql).
SELECT x.id, d.expires
FROM unnest($1::uuid[]) AS x (id)
CROSS JOIN LATERAL (SELECT 1 AS one FROM stoker.job AS f WHERE f.id = x.id LIMIT 1) AS j
LEFT JOIN LATERAL (SELECT f.expires FROM stoker.done AS f WHERE f.id = x.id LIMIT 1) AS d ON true

-- name: group_let_go
-- Done members of a group ($1) that it held ($3) are kept as they asked for, else for $2 (groups.let_go).
UPDATE stoker.done AS d SET expires = d.finished + coalesce(
    (SELECT (stoker.as_json(j.options) ->> 'keep')::bigint FROM stoker.job AS j WHERE j.id = d.id), $2::bigint
)
WHERE
    d.id = ANY(ARRAY(
        SELECT f.id FROM stoker.job AS f
        WHERE substring(f.options FROM '.*"group":"([A-Za-z0-9+/]{22}==)"') COLLATE "C" = $1::text
    ))
    AND d.status = 3 AND d.expires - d.finished = $3::bigint

-- name: group_changes_drop
-- Changes of groups that are closed or gone count nothing.
DELETE FROM stoker.group_change AS c
WHERE c.id = ANY($1::uuid[])
    AND NOT EXISTS (SELECT FROM stoker.job_group AS g WHERE g.id = c.id AND g.closed IS NULL)
