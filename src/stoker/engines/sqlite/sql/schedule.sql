SELECT schedule FROM stoker_schedules WHERE name = ?1
