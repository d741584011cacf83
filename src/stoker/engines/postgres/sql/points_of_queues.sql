SELECT queue, metric, bucket, count, sum, p50, p95, p99, max
FROM unnest($4::text[]) AS q (of_queue)
CROSS JOIN unnest($3::text[]) AS m (of_metric)
CROSS JOIN LATERAL (
    SELECT * FROM stoker.point
    WHERE queue = of_queue AND metric = of_metric AND bucket >= $1 AND bucket <= $2
) AS p
ORDER BY bucket, queue, metric
