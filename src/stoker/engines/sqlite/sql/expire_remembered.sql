DELETE FROM stoker_remembered WHERE at < ?1 RETURNING 1
