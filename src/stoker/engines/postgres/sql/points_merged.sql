SELECT
    queue,
    metric,
    $1 + (bucket - $1) / $4 * $4,
    sum(count)::bigint,
    sum(sum),
    sum(p50 * count) / greatest(sum(count), 1)::double precision,
    max(p95),
    max(p99),
    max(max)
FROM stoker.point
WHERE bucket >= $1 AND bucket <= $2 AND metric = ANY($3::text[])
GROUP BY 3, 1, 2
ORDER BY 3, 1, 2
