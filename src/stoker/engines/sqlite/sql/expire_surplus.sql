SELECT id, seq FROM stoker_done ORDER BY expires, id LIMIT ?1
