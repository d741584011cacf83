-- Whether a queue has subqueues, or will have them with this claim; whether the worker $2 lives at $3; how many claims
-- subqueues served; and the queue's settings, nulls where there are none.
SELECT
    EXISTS (SELECT 1 FROM stoker.subqueue AS s WHERE s.queue = $1)
    OR EXISTS (SELECT 1 FROM stoker.subqueue_log AS l WHERE l.queue = $1),
    EXISTS (SELECT 1 FROM stoker.worker AS w WHERE w.name = $2 AND w.until >= $3::bigint),
    coalesce((SELECT r.claims FROM stoker.subqueue_round AS r WHERE r.queue = $1), 0),
    q.name, q.paused, q.paused_until, q.paused_reason, q.paused_by, q.workers, q.rate_n, q.rate_per, q.rate_burst,
    q.tokens, q.refilled, q.keep_done, q.keep_dead, q.curve_on, q.curve_base, q.curve_max, q.cool_until,
    q.cool_count, q.declared, q.fair, q.limits
FROM (SELECT 1) AS one LEFT JOIN stoker.queue AS q ON q.name = $1
