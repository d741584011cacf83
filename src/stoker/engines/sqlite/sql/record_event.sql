INSERT INTO stoker_events (at, type, job, queue, kind, attempt, duration, total)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
WHERE NOT EXISTS (SELECT 1 FROM stoker_remembered AS r WHERE r.id = ?3 AND r.at >= ?1)
