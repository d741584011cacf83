SELECT 1 FROM stoker_ready WHERE qid = ?1 AND priority = ?2 AND due <= ?3 LIMIT 1
