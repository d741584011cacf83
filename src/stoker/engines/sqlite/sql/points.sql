SELECT queue, metric, bucket, value FROM stoker_points
WHERE bucket BETWEEN ?1 AND ?2 AND (?3 IS NULL OR queue = ?3)
ORDER BY bucket, queue, metric
