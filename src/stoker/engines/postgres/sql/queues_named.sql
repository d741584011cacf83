SELECT name, tuned, paused, workers, keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count
FROM stoker.queue WHERE name = ANY($1::text[])
