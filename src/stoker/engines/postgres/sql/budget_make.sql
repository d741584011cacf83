-- No row in the answer: another transaction was faster.
INSERT INTO stoker.budget (name, rate_n, rate_per, rate_burst, tokens, refilled, declared)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (name) DO NOTHING
RETURNING name
