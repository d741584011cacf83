INSERT INTO stoker_budgets (name, rate_n, rate_per, rate_burst, tokens, refilled, declared)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (name) DO UPDATE SET
    rate_n = excluded.rate_n,
    rate_per = excluded.rate_per,
    rate_burst = excluded.rate_burst,
    tokens = excluded.tokens,
    refilled = excluded.refilled,
    declared = excluded.declared
