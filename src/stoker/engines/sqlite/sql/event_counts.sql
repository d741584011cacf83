SELECT queue, type, count(*) FROM stoker_events
WHERE at >= ?1 AND at < ?2
GROUP BY queue, type
ORDER BY queue, type
