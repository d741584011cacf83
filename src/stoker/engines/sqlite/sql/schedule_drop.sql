DELETE FROM stoker_schedules WHERE name = ?1 RETURNING name
