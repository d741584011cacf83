-- name: lock_jobs
-- Lock jobs that have not ended, so that suspensions, signals and saves that meet at one of them exclude each other. It is
-- locked before the row of `ready` or `lease` that the job is in.
SELECT j.id FROM stoker.job AS j
WHERE j.id = ANY($1::uuid[]) AND NOT EXISTS (SELECT 1 FROM stoker.done AS d WHERE d.id = j.id)
ORDER BY j.id
FOR NO KEY UPDATE OF j

-- name: steps_named
SELECT s.id, s.name, s.state, s.until, s.token, s.at, s.value
FROM unnest($1::uuid[], $2::text[]) AS u (id, name)
JOIN stoker.step AS s ON s.id = u.id AND s.name = u.name

-- name: steps_named_locked
-- Rows that are swapped: a save, which does not lock their job, waits.
SELECT s.id, s.name, s.state, s.until, s.token, s.at, s.value
FROM unnest($1::uuid[], $2::text[]) AS u (id, name)
JOIN stoker.step AS s ON s.id = u.id AND s.name = u.name
ORDER BY s.id, s.name
FOR UPDATE OF s

-- name: steps_signaled
-- The rows that signals have to know: of each job all that are open or early, and all of the name; values of open ones.
SELECT u.id, s.name, s.state, s.until, s.token, s.at, s.question
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS u (id, name, low, high)
CROSS JOIN LATERAL (
    SELECT o.name, o.state, o.until, o.token, o.at, CASE o.state WHEN 2 THEN o.value END AS question
    FROM stoker.step AS o WHERE o.id = u.id AND o.state IN (2, 3)
    UNION
    SELECT o.name, o.state, o.until, o.token, o.at, CASE o.state WHEN 2 THEN o.value END
    FROM stoker.step AS o WHERE o.id = u.id AND o.name = u.name
    UNION
    SELECT o.name, o.state, o.until, o.token, o.at, CASE o.state WHEN 2 THEN o.value END
    FROM stoker.step AS o WHERE o.id = u.id AND o.name > u.low AND o.name < u.high
) AS s

-- name: step_put
-- A finished step is saved without the lock of its job: a signal that did not see it does not overwrite it.
INSERT INTO stoker.step AS s (id, token, at, until, state, name, value)
SELECT u.id, u.token, u.at, u.until, u.state, u.name, u.value
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::smallint[], $6::text[], $7::text[])
    AS u (id, token, at, until, state, name, value)
ORDER BY u.id, u.name
ON CONFLICT (id, name) DO UPDATE SET
    token = excluded.token, at = excluded.at, until = excluded.until, state = excluded.state, value = excluded.value
WHERE excluded.state <> 3 OR s.state = 3

-- name: copy_steps
-- The rows of jobs for copies of them (`steps.kept_by_copy`).
INSERT INTO stoker.step (id, token, at, until, state, name, value)
SELECT u.copy, s.token, s.at, s.until, s.state, s.name, s.value
FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS u (id, copy, after)
JOIN stoker.step AS s ON s.id = u.id AND s.name > '"' AND (u.after IS NULL OR (s.state < 2 AND s.at <= (
    SELECT last.at FROM stoker.step AS last WHERE last.id = u.id AND last.name = u.after
)))

-- name: ready_copied
-- `Record.clone`: a copy has a token from the start, so that no claim of it is fresh.
UPDATE stoker.ready SET token = 1 WHERE id = ANY($1::uuid[])

-- name: erase_step
DELETE FROM stoker.step WHERE id = ANY($1::uuid[])

-- name: groups_known
SELECT id FROM stoker.job_group WHERE id = ANY($1::uuid[])
