DELETE FROM stoker_received
WHERE (source, id) IN (SELECT source, id FROM stoker_received WHERE until <= ?1 ORDER BY until LIMIT ?2)
RETURNING 1
