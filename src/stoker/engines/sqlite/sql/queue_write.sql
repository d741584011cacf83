INSERT INTO stoker_queues (
    name, paused, paused_until, paused_reason, paused_by, workers, rate_n, rate_per, rate_burst, tokens,
    refilled, keep_done, keep_dead, curve_on, curve_base, curve_max, cool_until, cool_count, declared, fair,
    limits
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)
ON CONFLICT (name) DO UPDATE SET
    paused = excluded.paused,
    paused_until = excluded.paused_until,
    paused_reason = excluded.paused_reason,
    paused_by = excluded.paused_by,
    workers = excluded.workers,
    rate_n = excluded.rate_n,
    rate_per = excluded.rate_per,
    rate_burst = excluded.rate_burst,
    tokens = excluded.tokens,
    refilled = excluded.refilled,
    keep_done = excluded.keep_done,
    keep_dead = excluded.keep_dead,
    curve_on = excluded.curve_on,
    curve_base = excluded.curve_base,
    curve_max = excluded.curve_max,
    cool_until = excluded.cool_until,
    cool_count = excluded.cool_count,
    declared = excluded.declared,
    fair = excluded.fair,
    limits = excluded.limits
RETURNING qid
