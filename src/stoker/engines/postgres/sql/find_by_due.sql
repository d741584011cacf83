-- Places of waiting jobs of these queues ($4) behind one ($1, $2), soonest first, at most $3. Priorities are found by
-- hopping along the index.
WITH RECURSIVE level AS (
    SELECT
        q.queue,
        (
            SELECT f.priority FROM stoker.ready AS f WHERE f.queue = q.queue
            ORDER BY f.queue, f.priority LIMIT 1
        ) AS priority
    FROM (
        SELECT unnest($4::text[])
        UNION ALL
        SELECT s.line FROM stoker.subqueue_line AS s WHERE s.queue = ANY($4::text[])
    ) AS q (queue)
    UNION ALL
    SELECT
        l.queue,
        (
            SELECT f.priority FROM stoker.ready AS f WHERE f.queue = l.queue AND f.priority > l.priority
            ORDER BY f.queue, f.priority LIMIT 1
        )
    FROM level AS l WHERE l.priority IS NOT NULL
)

SELECT x.due, x.id
FROM level AS l
CROSS JOIN LATERAL (
    SELECT f.due, f.id FROM stoker.ready AS f
    WHERE f.queue = l.queue AND f.priority = l.priority AND (f.due, f.id) > ($1::bigint, $2::uuid)
    ORDER BY f.queue, f.priority, f.due, f.id LIMIT $3
) AS x
WHERE l.priority IS NOT NULL
ORDER BY x.due, x.id LIMIT $3
