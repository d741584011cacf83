-- A queue's row, held until the transaction ends; made when it is not there yet.
INSERT INTO stoker.queue AS q (
    name, tuned, paused, workers, keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count
) VALUES ($1, false, false, NULL, $2, $3, $4, $5, $6, NULL, 0)
ON CONFLICT (name) DO UPDATE SET name = q.name
RETURNING name, tuned, paused, workers, keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count
