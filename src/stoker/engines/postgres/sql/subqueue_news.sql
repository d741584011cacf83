-- What a claim of a divided queue begins with, in one row: the clock; whether the queue has subqueues, or will have them
-- with this claim; whether the worker $2 lives; how many claims subqueues served; the queue's settings, nulls where there
-- are none; then as JSON the oldest $4 rows of the log, which are deleted, and states: those that the log is about and
-- the first $5 of those that are touched. The transaction has the queue's lock.
WITH t AS MATERIALIZED (
    SELECT coalesce($3::bigint, stoker.clock()) AS now
), p AS (
    DELETE FROM stoker.subqueue_log
    WHERE queue = $1 AND n IN (
        SELECT l.n FROM stoker.subqueue_log AS l WHERE l.queue = $1 ORDER BY l.queue, l.n LIMIT $4 FOR UPDATE SKIP LOCKED
    )
    RETURNING n, name, freed, look, options, anew
), s AS (
    SELECT s.* FROM (SELECT DISTINCT name FROM p) AS u
    CROSS JOIN LATERAL (SELECT * FROM stoker.subqueue WHERE queue = $1 AND name = u.name OFFSET 0) AS s
    UNION
    (
        SELECT s.* FROM t CROSS JOIN LATERAL (
            SELECT * FROM stoker.subqueue WHERE queue = $1 AND next <= t.now ORDER BY queue, next, name LIMIT $5
        ) AS s
    )
)
SELECT
    t.now,
    EXISTS (SELECT 1 FROM stoker.subqueue AS s WHERE s.queue = $1)
    OR EXISTS (SELECT 1 FROM stoker.subqueue_log AS l WHERE l.queue = $1),
    EXISTS (SELECT 1 FROM stoker.worker AS w WHERE w.name = $2 AND w.until >= t.now),
    coalesce((SELECT r.claims FROM stoker.subqueue_round AS r WHERE r.queue = $1), 0),
    q.name, q.paused, q.paused_until, q.paused_reason, q.paused_by, q.workers, q.rate_n, q.rate_per, q.rate_burst,
    q.tokens, q.refilled, q.keep_done, q.keep_dead, q.curve_on, q.curve_base, q.curve_max, q.cool_until,
    q.cool_count, q.declared, q.fair, q.limits,
    (SELECT json_agg(json_build_array(p.n, p.name, p.freed, p.look, p.options, p.anew)) FROM p)::text,
    (
        SELECT json_agg(json_build_array(
            s.name, s.limited, s.number, s.pinned, s.running, s.rate_n, s.rate_per, s.rate_burst, s.tokens, s.refilled,
            s.priority, s.due, s.id, s.next, s.at, s.turn, s.since
        )) FROM s
    )::text
FROM t LEFT JOIN stoker.queue AS q ON q.name = $1
