-- What lines hold, priority by priority: up to n + 1 due jobs, and when the first one is due after $3. A line of one job,
-- as many are, is read by one search.
SELECT x.line, v.p, v.dues, v.ids, v.later
FROM
    unnest($1::text[], $2::int[]) AS x (line, n)
    CROSS JOIN LATERAL (
        SELECT count(*) AS n, min(f.priority) AS p, min(f.due) AS due, (array_agg(f.id))[1] AS id
        FROM (
            SELECT f.priority, f.due, f.id FROM stoker.ready AS f WHERE f.queue = x.line
            ORDER BY f.queue, f.priority, f.due, f.id LIMIT 2
        ) AS f
    ) AS few
    CROSS JOIN LATERAL (
        SELECT
            few.p, CASE WHEN few.due <= $3::bigint THEN ARRAY[few.due] END AS dues,
            CASE WHEN few.due <= $3::bigint THEN ARRAY[few.id] END AS ids,
            CASE WHEN few.due > $3::bigint THEN few.due END AS later
        WHERE few.n = 1
        UNION ALL
        SELECT v.p, a.dues, a.ids, b.due
        FROM
            (
                WITH RECURSIVE level (p) AS (
                    SELECT few.p WHERE few.n = 2
                    UNION ALL
                    SELECT (
                        SELECT f.priority FROM stoker.ready AS f WHERE f.queue = x.line AND f.priority > level.p
                        ORDER BY f.queue, f.priority LIMIT 1
                    ) FROM level WHERE level.p IS NOT NULL
                )
                SELECT level.p FROM level WHERE level.p IS NOT NULL
            ) AS v
            CROSS JOIN LATERAL (
                SELECT array_agg(f.due) AS dues, array_agg(f.id) AS ids
                FROM (
                    SELECT f.due, f.id FROM stoker.ready AS f
                    WHERE f.queue = x.line AND f.priority = v.p AND f.due <= $3::bigint
                    ORDER BY f.queue, f.priority, f.due, f.id LIMIT x.n + 1
                ) AS f
            ) AS a
            LEFT JOIN LATERAL (
                SELECT f.due FROM stoker.ready AS f WHERE f.queue = x.line AND f.priority = v.p AND f.due > $3::bigint
                ORDER BY f.queue, f.priority, f.due LIMIT 1
            ) AS b ON true
    ) AS v
