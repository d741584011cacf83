-- What lines hold, priority by priority: the first job, and when the first one is due after $2.
SELECT x.line, v.p, a.due, a.id, b.due
FROM
    unnest($1::text[]) AS x (line)
    CROSS JOIN LATERAL (
        WITH RECURSIVE level (p) AS (
            (
                SELECT f.priority FROM stoker.ready AS f WHERE f.queue = x.line
                ORDER BY f.queue, f.priority LIMIT 1
            )
            UNION ALL
            SELECT (
                SELECT f.priority FROM stoker.ready AS f WHERE f.queue = x.line AND f.priority > level.p
                ORDER BY f.queue, f.priority LIMIT 1
            ) FROM level WHERE level.p IS NOT NULL
        )
        SELECT level.p FROM level WHERE level.p IS NOT NULL
    ) AS v
    CROSS JOIN LATERAL (
        SELECT f.due, f.id FROM stoker.ready AS f WHERE f.queue = x.line AND f.priority = v.p
        ORDER BY f.queue, f.priority, f.due, f.id LIMIT 1
    ) AS a
    LEFT JOIN LATERAL (
        SELECT f.due FROM stoker.ready AS f WHERE f.queue = x.line AND f.priority = v.p AND f.due > $2::bigint
        ORDER BY f.queue, f.priority, f.due LIMIT 1
    ) AS b ON true
