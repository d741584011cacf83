SELECT due FROM stoker_ready WHERE qid = ?1 AND priority = ?2 ORDER BY due LIMIT 1
