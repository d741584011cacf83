SELECT at, type, job, queue, kind, attempt, duration, total FROM stoker_events
WHERE at >= ?1 AND at < ?2
ORDER BY at, n
LIMIT ?3
