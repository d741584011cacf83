DELETE FROM stoker_troubles WHERE kind = ?1
