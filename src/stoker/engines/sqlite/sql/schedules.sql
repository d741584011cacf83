SELECT name, schedule FROM stoker_schedules ORDER BY name
