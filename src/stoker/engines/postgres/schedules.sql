-- name: schedules
SELECT name, schedule FROM stoker.schedule ORDER BY name

-- name: schedule_lock
-- In the order of their names, so that two tickers never wait for each other.
SELECT name, schedule FROM stoker.schedule WHERE name = ANY($1::text[]) ORDER BY name FOR UPDATE

-- name: schedule_make
-- No row in the answer: another transaction was faster.
INSERT INTO stoker.schedule (name, schedule) SELECT n.name, n.schedule
FROM unnest($1::text[], $2::text[]) AS n (name, schedule)
ON CONFLICT (name) DO NOTHING
RETURNING name

-- name: schedule_write
UPDATE stoker.schedule AS s SET schedule = n.schedule
FROM unnest($1::text[], $2::text[]) AS n (name, schedule)
WHERE s.name = n.name
RETURNING s.name

-- name: schedule_drop
DELETE FROM stoker.schedule WHERE name = $1 RETURNING name
