SELECT queue, at, duration, total FROM stoker.event
WHERE at >= $1 AND at < $2 AND type = 'completed' AND duration IS NOT NULL AND total IS NOT NULL
    AND ($4::text IS NULL OR queue = $4) AND ($5::uuid IS NULL OR job = $5)
ORDER BY at DESC, n DESC
LIMIT $3
