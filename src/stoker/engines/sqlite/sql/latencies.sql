SELECT queue, at, duration, total FROM stoker_events
WHERE at >= ?1 AND at < ?2 AND type = 'completed' AND duration IS NOT NULL AND total IS NOT NULL
    AND (?4 IS NULL OR queue = ?4) AND (?5 IS NULL OR job = ?5)
ORDER BY at DESC, n DESC
LIMIT ?3
