SELECT
    queue,
    metric,
    ?1 + (bucket - ?1) / ?5 * ?5,
    sum(count),
    sum(sum),
    sum(p50 * count) / max(sum(count), 1),
    max(p95),
    max(p99),
    max(max)
FROM json_each(?4) AS q CROSS JOIN json_each(?3) AS m CROSS JOIN stoker_points
WHERE queue = q.value AND metric = m.value AND bucket BETWEEN ?1 AND ?2
GROUP BY 3, 1, 2
ORDER BY 3, 1, 2
