-- A queue's settings and cool-down. A queue that was tuned once stays tuned.
INSERT INTO stoker.queue AS q (
    name, tuned, paused, workers, keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (name) DO UPDATE SET
    tuned = q.tuned OR excluded.tuned, paused = excluded.paused, workers = excluded.workers,
    keep_done = excluded.keep_done, keep_dead = excluded.keep_dead, curve_on = excluded.curve_on,
    curve_base = excluded.curve_base, curve_max = excluded.curve_max, cool_until = excluded.cool_until,
    cool_count = excluded.cool_count
