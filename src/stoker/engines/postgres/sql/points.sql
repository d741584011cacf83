SELECT queue, metric, bucket, count, sum, p50, p95, p99, max FROM stoker.point
WHERE bucket >= $1 AND bucket <= $2 AND metric = ANY($3::text[])
ORDER BY bucket, queue, metric
