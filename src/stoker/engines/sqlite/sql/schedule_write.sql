INSERT INTO stoker_schedules (name, schedule) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET schedule = excluded.schedule
