SELECT priority FROM stoker_ready WHERE qid = ?1 AND priority > ?2 ORDER BY priority LIMIT 1
