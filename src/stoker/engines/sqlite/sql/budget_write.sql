INSERT INTO stoker_budgets (name, capacity, rate, tokens, refilled)
VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (name) DO UPDATE SET
    capacity = excluded.capacity,
    rate = excluded.rate,
    tokens = excluded.tokens,
    refilled = excluded.refilled
