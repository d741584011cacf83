-- No row in the answer: somebody else was faster.
INSERT INTO stoker.budget (name, capacity, rate, tokens, refilled) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name) DO NOTHING
RETURNING name
