SELECT id, seq FROM stoker_done WHERE id < ?1 ORDER BY id DESC LIMIT ?2
