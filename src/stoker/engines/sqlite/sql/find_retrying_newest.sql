SELECT id FROM stoker_ready WHERE status = 2 AND id < ?1 ORDER BY id DESC LIMIT ?2
