-- Per queue and priority: how many pending jobs are not due at $6, counted up to $7, since when the oldest due one is,
-- and how many due ones were read. $1 to $5 are places to read: queue, from which to which priority, from which instant,
-- and how many pending jobs the queue has if they are few (`CensusBounds`).
-- Priorities of a range are found by hopping along the index, never by reading all its jobs. A range of one priority is
-- not searched: its row says so when there is no job. A hop passes over the dead entries before the first job; where
-- that job is due, the oldest one is looked for from there on, so that no dead entry is read twice.
-- Dead entries are before the oldest job. Where jobs are few the newest is read first, also to find the priorities, and
-- the last one that there can be is the oldest: no dead entry before it is read.
WITH RECURSIVE place AS MATERIALIZED (
    SELECT p.* FROM
        unnest($1::text[], $2::text::smallint[], $3::text::smallint[], $4::text::bigint[], $5::int[])
            AS p (queue, low, high, since, few)
), level AS (
    SELECT
        p.queue, p.low, p.high, p.since, p.few,
        CASE WHEN p.few IS NULL THEN (
            SELECT ARRAY[f.priority, f.due] FROM stoker.ready AS f
            WHERE f.queue = p.queue AND f.priority >= p.low AND f.priority <= p.high AND f.due >= p.since
            ORDER BY f.queue, f.priority, f.due LIMIT 1
        ) ELSE (
            SELECT ARRAY[f.priority, f.due] FROM stoker.ready AS f
            WHERE f.queue = p.queue AND f.priority >= p.low AND f.priority <= p.high AND f.due >= p.since
            ORDER BY f.queue DESC, f.priority DESC, f.due DESC LIMIT 1
        ) END AS first
    FROM place AS p WHERE p.low < p.high
    UNION ALL
    SELECT
        l.queue, l.low, l.high, l.since, l.few,
        CASE WHEN l.few IS NULL THEN (
            SELECT ARRAY[f.priority, f.due] FROM stoker.ready AS f
            WHERE
                f.queue = l.queue AND f.priority > l.first[1]::smallint AND f.priority <= l.high AND f.due >= l.since
            ORDER BY f.queue, f.priority, f.due LIMIT 1
        ) ELSE (
            SELECT ARRAY[f.priority, f.due] FROM stoker.ready AS f
            WHERE
                f.queue = l.queue AND f.priority >= l.low AND f.priority < l.first[1]::smallint AND f.due >= l.since
            ORDER BY f.queue DESC, f.priority DESC, f.due DESC LIMIT 1
        ) END
    FROM level AS l WHERE l.first IS NOT NULL
)
SELECT l.queue, l.priority, s.later, o.due, o.read
FROM
    (
        SELECT queue, first[1]::smallint AS priority, CASE WHEN few IS NULL THEN first[2] ELSE since END AS since, few
        FROM level WHERE first IS NOT NULL
        UNION ALL
        SELECT queue, low, since, few FROM place WHERE low = high
    ) AS l
CROSS JOIN LATERAL (
    SELECT count(*) AS later FROM (
        SELECT 1 FROM stoker.ready AS f
        WHERE f.queue = l.queue AND f.priority = l.priority AND f.due > $6 AND f.status = 0
        ORDER BY f.queue, f.priority, f.due LIMIT $7
    ) AS x
) AS s
CROSS JOIN LATERAL (
    SELECT min(x.due) AS due, count(*) AS read FROM (
        (
            SELECT f.due FROM stoker.ready AS f
            WHERE
                l.few IS NULL AND f.queue = l.queue AND f.priority = l.priority
                AND f.due >= l.since AND f.due <= $6 AND f.status = 0
            ORDER BY f.queue, f.priority, f.due LIMIT 1
        )
        UNION ALL
        (
            SELECT f.due FROM stoker.ready AS f
            WHERE
                l.few IS NOT NULL AND f.queue = l.queue AND f.priority = l.priority
                AND f.due >= l.since AND f.due <= $6 AND f.status = 0
            ORDER BY f.queue DESC, f.priority DESC, f.due DESC LIMIT greatest(l.few - s.later, 0)
        )
    ) AS x
) AS o
