-- No row in the answer: another transaction was faster.
INSERT INTO stoker.schedule (name, schedule) SELECT n.name, n.schedule
FROM unnest($1::text[], $2::text[]) AS n (name, schedule)
ON CONFLICT (name) DO NOTHING
RETURNING name
