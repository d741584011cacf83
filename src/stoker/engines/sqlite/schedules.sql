-- name: schedules
SELECT name, schedule FROM stoker_schedules ORDER BY name

-- name: schedule
SELECT schedule FROM stoker_schedules WHERE name = ?1

-- name: schedule_write
INSERT INTO stoker_schedules (name, schedule) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET schedule = excluded.schedule

-- name: schedule_drop
DELETE FROM stoker_schedules WHERE name = ?1 RETURNING name
