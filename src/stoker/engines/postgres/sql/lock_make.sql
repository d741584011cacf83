-- No row in the answer: another transaction was faster.
INSERT INTO stoker.lock (name, owner, until) VALUES ($1, $2, $3)
ON CONFLICT (name) DO NOTHING
RETURNING name
