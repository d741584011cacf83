SELECT id, seq FROM stoker_body WHERE ukey = ?3 AND id < ?1 ORDER BY id DESC LIMIT ?2
