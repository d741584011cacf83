SELECT at, type, job, queue, kind, attempt, duration, total FROM stoker.event
WHERE at >= $1 AND at < $2 AND ($4::text IS NULL OR queue = $4)
ORDER BY at, n
LIMIT $3
