-- Blocks whose last event is older.
DELETE FROM stoker_events WHERE first < ?1 AND last < ?1 RETURNING count
