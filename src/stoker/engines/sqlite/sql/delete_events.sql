DELETE FROM stoker_events WHERE job = ?1 RETURNING 1
