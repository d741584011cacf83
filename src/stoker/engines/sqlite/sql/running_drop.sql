DELETE FROM stoker_running WHERE wid = ?1 AND seq = ?2
