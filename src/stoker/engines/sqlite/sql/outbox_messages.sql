SELECT place, id, created, raw, key, type, headers, payload
FROM stoker_messages
WHERE place > ?1 AND place < ?2
ORDER BY place
LIMIT ?3
