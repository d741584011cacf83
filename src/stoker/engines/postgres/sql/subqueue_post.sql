DELETE FROM stoker.subqueue_log
WHERE queue = $1 AND n IN (
    SELECT l.n FROM stoker.subqueue_log AS l WHERE l.queue = $1 ORDER BY l.queue, l.n LIMIT $2 FOR UPDATE SKIP LOCKED
)
RETURNING n, name, freed, look, options, anew
