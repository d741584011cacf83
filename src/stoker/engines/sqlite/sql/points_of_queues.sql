SELECT queue, metric, bucket, count, sum, p50, p95, p99, max
FROM json_each(?4) AS q CROSS JOIN json_each(?3) AS m CROSS JOIN stoker_points
WHERE queue = q.value AND metric = m.value AND bucket BETWEEN ?1 AND ?2
ORDER BY bucket, queue, metric
