-- Blocks whose last event is older.
DELETE FROM stoker.event
WHERE n = ANY(ARRAY(
    SELECT n FROM stoker.event WHERE first < $1 AND last < $1 ORDER BY first LIMIT $2 FOR UPDATE SKIP LOCKED
))
RETURNING count
