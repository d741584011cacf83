SELECT id, seq FROM stoker_body WHERE id < ?1 ORDER BY id DESC LIMIT ?2
