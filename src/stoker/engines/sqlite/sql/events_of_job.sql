SELECT at, type, job, queue, kind, attempt, duration, total FROM stoker_events
WHERE job = ?5 AND at >= ?1 AND at < ?2 AND (?4 IS NULL OR queue = ?4)
ORDER BY at, n
LIMIT ?3
