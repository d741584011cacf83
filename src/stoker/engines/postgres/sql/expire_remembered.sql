DELETE FROM stoker.remembered WHERE id = ANY(ARRAY(
    SELECT r.id FROM stoker.remembered AS r WHERE r.at < $1 ORDER BY r.at LIMIT $2 FOR UPDATE SKIP LOCKED
))
RETURNING 1
