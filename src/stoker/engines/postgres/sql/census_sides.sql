-- For each line ($1 queues, $2 now): how many pending jobs are not due and how many are, each counted up to $3 per
-- priority. What follows from it: `query.scheduled_count`.
WITH RECURSIVE level AS (
    SELECT
        q.name AS queue,
        (
            SELECT f.priority FROM stoker.ready AS f WHERE f.queue = q.name
            ORDER BY f.queue, f.priority LIMIT 1
        ) AS priority
    FROM unnest($1::text[]) AS q (name)
    UNION ALL
    SELECT
        l.queue,
        (
            SELECT f.priority FROM stoker.ready AS f WHERE f.queue = l.queue AND f.priority > l.priority
            ORDER BY f.queue, f.priority LIMIT 1
        )
    FROM level AS l WHERE l.priority IS NOT NULL
)
SELECT l.queue, sum(s.later)::bigint, sum(o.due)::bigint
FROM
    level AS l
CROSS JOIN LATERAL (
    SELECT count(*) AS later FROM (
        SELECT 1 FROM stoker.ready AS f
        WHERE f.queue = l.queue AND f.priority = l.priority AND f.due > $2 AND f.status = 0
        ORDER BY f.queue, f.priority, f.due LIMIT $3
    ) AS x
) AS s
CROSS JOIN LATERAL (
    SELECT count(*) AS due FROM (
        SELECT 1 FROM stoker.ready AS f
        WHERE f.queue = l.queue AND f.priority = l.priority AND f.due <= $2 AND f.status = 0
        ORDER BY f.queue, f.priority, f.due LIMIT $3
    ) AS x
) AS o
WHERE l.priority IS NOT NULL
GROUP BY l.queue
