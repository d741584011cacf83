-- The first due jobs of lines, at most so many of each priority. Rows that another transaction has locked are skipped.
SELECT x.line, f.priority, f.due, f.id
FROM
    unnest($1::text[], $2::int[]) AS x (line, n)
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
        SELECT f.priority, f.due, f.id FROM stoker.ready AS f
        WHERE f.queue = x.line AND f.priority = v.p AND f.due <= $3::bigint
        ORDER BY f.queue, f.priority, f.due, f.id LIMIT x.n FOR UPDATE SKIP LOCKED
    ) AS f
