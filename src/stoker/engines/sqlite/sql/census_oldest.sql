SELECT due FROM stoker_ready
WHERE qid = ?1 AND priority = ?2 AND due <= ?3 AND status = 0
ORDER BY due
LIMIT 1
