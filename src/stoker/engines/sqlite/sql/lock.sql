SELECT owner, until FROM stoker_locks WHERE name = ?1
