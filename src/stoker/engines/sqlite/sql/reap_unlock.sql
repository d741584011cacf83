DELETE FROM stoker_locks WHERE owner = ?1 RETURNING name
