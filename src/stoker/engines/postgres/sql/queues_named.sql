SELECT
    name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens, refilled,
    keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair, limits
FROM stoker.queue WHERE name = ANY($1::text[])
