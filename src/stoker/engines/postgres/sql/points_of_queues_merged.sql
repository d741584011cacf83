SELECT
    queue,
    metric,
    $1 + (bucket - $1) / $5 * $5,
    sum(count)::bigint,
    sum(sum),
    sum(p50 * count) / greatest(sum(count), 1)::double precision,
    max(p95),
    max(p99),
    max(max)
FROM unnest($4::text[]) AS q (of_queue)
CROSS JOIN unnest($3::text[]) AS m (of_metric)
CROSS JOIN LATERAL (
    SELECT * FROM stoker.point
    WHERE queue = of_queue AND metric = of_metric AND bucket >= $1 AND bucket <= $2
) AS p
GROUP BY 3, 1, 2
ORDER BY 3, 1, 2
