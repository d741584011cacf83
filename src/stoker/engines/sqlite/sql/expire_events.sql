DELETE FROM stoker_events WHERE at < ?1 RETURNING 1
