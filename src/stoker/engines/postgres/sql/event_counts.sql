SELECT queue, type, count(*) FROM stoker.event
WHERE at >= $1 AND at < $2
GROUP BY queue, type
ORDER BY queue, type
