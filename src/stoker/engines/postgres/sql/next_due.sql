-- In how many microseconds the next job of these queues is due, among those that are not due yet. Priorities are found
-- by hopping along the index.
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
SELECT l.queue, x.due - c.now
FROM
    (SELECT stoker.clock() AS now) AS c
CROSS JOIN level AS l
CROSS JOIN LATERAL (
    SELECT f.due FROM stoker.ready AS f
    WHERE f.queue = l.queue AND f.priority = l.priority AND f.due > c.now
    ORDER BY f.queue, f.priority, f.due LIMIT 1
) AS x
WHERE l.priority IS NOT NULL
ORDER BY x.due
LIMIT 1
