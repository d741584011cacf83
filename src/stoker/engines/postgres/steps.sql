-- name: steps_of_jobs
-- Rows whose names are behind $2.
SELECT id, name, state, until, token, at, value FROM stoker.step
WHERE id = ANY($1::uuid[]) AND name > $2::text
ORDER BY id, at, name

-- name: pages_of_job
-- Pages of emitted values (`model.emitted`): their names begin with '!', before those of all steps.
SELECT id, name, state, until, token, at, value FROM stoker.step
WHERE id = $1::uuid AND name < '"' AND until > $2::bigint
ORDER BY until

-- name: jobs_asking
-- Those with a row of the index of questions (`steps.asks`).
SELECT DISTINCT id FROM stoker.step
WHERE
    state = 2 AND value IS NOT NULL AND substr(name, 1, 6) <> 'calls:' AND substr(value, 1, 8) <> '{"kind":'
    AND ($1::uuid IS NULL OR id < $1::uuid)
ORDER BY id DESC
LIMIT $2::int

-- name: step_save
-- Finished steps, each only while its job's bit is open under exactly its worker and token (`steps.stored`: they
-- overwrite). Returns which of them were.
WITH t AS MATERIALIZED (
    SELECT coalesce($1::bigint, stoker.clock()) AS now
), ok AS MATERIALIZED (
    SELECT u.ord, u.id, u.token, u.until, u.name, u.value
    FROM
        unnest(
            $2::bigint[], $3::text[], $4::bigint[], $5::int[], $6::uuid[], $7::text[], $8::bigint[], $9::text[]
        ) WITH ORDINALITY AS u (lease, worker, token, pos, id, name, until, value, ord)
    JOIN stoker.lease AS l
        ON l.id = u.lease AND l.id = ANY($2::bigint[]) AND l.worker || '' = u.worker AND l.token = u.token
    WHERE get_bit(l.open, u.pos) = 1
    ORDER BY l.id FOR SHARE OF l
), w AS (
    INSERT INTO stoker.step (id, token, at, until, state, name, value)
    SELECT ok.id, ok.token, t.now, ok.until, 0, ok.name, ok.value FROM ok CROSS JOIN t ORDER BY ok.id, ok.name
    ON CONFLICT (id, name) DO UPDATE SET
        token = excluded.token, at = excluded.at, until = excluded.until, state = excluded.state,
        value = excluded.value
)
SELECT ord FROM ok

-- name: answer_alone
-- Answer a wait on which a job is suspended, and make that job due (`Record.run_now`). Nothing happens unless both are as
-- `steps_suspended` saw them: the row of `ready` is locked first, as by every other call that signals, claims or changes
-- the job, and both are looked at again as they are then. Returns the queue. `+ 0` keeps the plan from the indexes of
-- all suspended jobs.
WITH t AS MATERIALIZED (
    SELECT coalesce($1::bigint, stoker.clock()) AS now
), r AS MATERIALIZED (
    SELECT id, queue FROM stoker.ready
    WHERE id = $2::uuid AND settled + 0 = 8 AND past AND token = $4::bigint AND strpos(queue, '/') = 0
    FOR UPDATE
), s AS (
    UPDATE stoker.step SET state = 0, value = $5::text, at = (SELECT now FROM t)
    WHERE id = (SELECT id FROM r) AND name = $3::text AND state = 2 AND token = $4::bigint
    RETURNING id
), p AS (
    UPDATE stoker.past SET due = least(due, (SELECT now FROM t)) WHERE id = (SELECT id FROM s)
), u AS (
    UPDATE stoker.ready SET due = least(due, (SELECT now FROM t)) WHERE id = (SELECT id FROM s)
)
SELECT r.queue FROM r JOIN s ON s.id = r.id
