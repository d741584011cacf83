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
