-- No row in the answer: another transaction was faster.
INSERT INTO stoker.schedule (name, schedule) VALUES ($1, $2)
ON CONFLICT (name) DO NOTHING
RETURNING name
