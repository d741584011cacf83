SELECT queue, metric, bucket, count, sum, p50, p95, p99, max FROM stoker_points
WHERE bucket BETWEEN ?1 AND ?2 AND metric IN (SELECT value FROM json_each(?3))
ORDER BY bucket, queue, metric
