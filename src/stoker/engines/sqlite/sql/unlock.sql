DELETE FROM stoker_locks WHERE name = ?1
