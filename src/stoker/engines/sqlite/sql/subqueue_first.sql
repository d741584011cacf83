SELECT due, id FROM stoker_ready
WHERE qid = ?1 AND priority = ?2 AND due <= ?3
ORDER BY due, id
LIMIT ?4
