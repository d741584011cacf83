-- Queues of which a subqueue has been full since $1 or before.
SELECT DISTINCT queue FROM stoker.subqueue WHERE since <= $1::bigint ORDER BY queue
