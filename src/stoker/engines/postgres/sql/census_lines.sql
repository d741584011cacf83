-- Per queue and priority: how many pending jobs are not due at $5, counted up to $6, and since when the oldest due one
-- is. $1 to $4 are places to read: queue, from which to which priority, and from which instant (`CensusBounds`).
-- Priorities of a range are found by hopping along the index, never by reading all its jobs. A range of one priority is
-- not searched: its row says so when there is no job.
WITH RECURSIVE place AS MATERIALIZED (
    SELECT p.* FROM
        unnest($1::text[], $2::text::smallint[], $3::text::smallint[], $4::text::bigint[])
            AS p (queue, low, high, since)
), level AS (
    SELECT
        p.queue, p.high, p.since,
        (
            SELECT f.priority FROM stoker.ready AS f
            WHERE f.queue = p.queue AND f.priority >= p.low AND f.priority <= p.high AND f.due >= p.since
            ORDER BY f.queue, f.priority LIMIT 1
        ) AS priority
    FROM place AS p WHERE p.low < p.high
    UNION ALL
    SELECT
        l.queue, l.high, l.since,
        (
            SELECT f.priority FROM stoker.ready AS f
            WHERE f.queue = l.queue AND f.priority > l.priority AND f.priority <= l.high AND f.due >= l.since
            ORDER BY f.queue, f.priority LIMIT 1
        )
    FROM level AS l WHERE l.priority IS NOT NULL
)
SELECT l.queue, l.priority, s.later, o.due
FROM
    (
        SELECT queue, priority, since FROM level WHERE priority IS NOT NULL
        UNION ALL
        SELECT queue, low, since FROM place WHERE low = high
    ) AS l
CROSS JOIN LATERAL (
    SELECT count(*) AS later FROM (
        SELECT 1 FROM stoker.ready AS f
        WHERE f.queue = l.queue AND f.priority = l.priority AND f.due > $5 AND f.status = 0
        ORDER BY f.queue, f.priority, f.due LIMIT $6
    ) AS x
) AS s
LEFT JOIN LATERAL (
    SELECT f.due FROM stoker.ready AS f
    WHERE f.queue = l.queue AND f.priority = l.priority AND f.due >= l.since AND f.due <= $5 AND f.status = 0
    ORDER BY f.queue, f.priority, f.due LIMIT 1
) AS o ON true
