SELECT qid, name, tuned, paused, workers, keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count
FROM stoker_queues
ORDER BY name
