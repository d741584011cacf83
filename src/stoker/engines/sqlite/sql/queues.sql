SELECT
    qid, name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens,
    refilled, keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair, limits,
    EXISTS (SELECT 1 FROM stoker_subqueues AS s WHERE s.qid = stoker_queues.qid)
FROM stoker_queues
ORDER BY name
