SELECT id, seq FROM stoker_done ORDER BY finished, id LIMIT ?1
