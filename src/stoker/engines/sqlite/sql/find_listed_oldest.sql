SELECT id, seq FROM stoker_done WHERE qid = ?3 AND status = ?4 AND status > 3 AND id > ?1 ORDER BY id ASC LIMIT ?2
