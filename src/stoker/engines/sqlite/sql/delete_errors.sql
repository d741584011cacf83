DELETE FROM stoker_errors WHERE seq = ?1
