DELETE FROM stoker_locks WHERE until <= ?1 RETURNING 1
