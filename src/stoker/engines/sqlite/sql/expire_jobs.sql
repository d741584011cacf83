SELECT id, seq FROM stoker_done WHERE expires < ?1 ORDER BY expires LIMIT ?2
