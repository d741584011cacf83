SELECT expires, id FROM stoker_done WHERE status > 3 AND expires < ?1 ORDER BY expires, id LIMIT ?2
