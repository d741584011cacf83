SELECT
    queue,
    metric,
    ?1 + (bucket - ?1) / ?4 * ?4,
    sum(count),
    sum(sum),
    sum(p50 * count) / max(sum(count), 1),
    max(p95),
    max(p99),
    max(max)
FROM stoker_points
WHERE bucket BETWEEN ?1 AND ?2 AND metric IN (SELECT value FROM json_each(?3))
GROUP BY 3, 1, 2
ORDER BY 3, 1, 2
