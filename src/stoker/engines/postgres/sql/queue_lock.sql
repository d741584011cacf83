-- A queue's row, held until the transaction ends; made when it is not there yet.
INSERT INTO stoker.queue AS q (
    name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens, refilled,
    keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair, limits
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
ON CONFLICT (name) DO UPDATE SET name = q.name
RETURNING
    name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens, refilled,
    keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair, limits
