-- The gates of these queues, and when the first job of each is due. Priorities are found by hopping along the index. What
-- has been due for longer than $3 microseconds is left to claims: they know where in a long line to look (claim_cursor.py).
WITH RECURSIVE clock AS (SELECT coalesce($2::bigint, stoker.clock()) AS now),

gate AS (
    SELECT
        x.name,
        coalesce(q.paused, false) AS paused,
        q.paused_until,
        q.cool_until,
        q.rate_n,
        q.rate_per,
        q.rate_burst,
        q.tokens,
        q.refilled
    FROM unnest($1::text[]) AS x (name)
    LEFT JOIN stoker.queue AS q ON q.name = x.name
),

level AS (
    SELECT
        g.name AS queue,
        (
            SELECT f.priority FROM stoker.ready AS f WHERE f.queue = g.name
            ORDER BY f.queue, f.priority LIMIT 1
        ) AS priority
    FROM gate AS g, clock AS c
    WHERE (NOT g.paused OR g.paused_until <= c.now) AND (g.cool_until IS NULL OR g.cool_until <= c.now)
    UNION ALL
    SELECT
        l.queue,
        (
            SELECT f.priority FROM stoker.ready AS f WHERE f.queue = l.queue AND f.priority > l.priority
            ORDER BY f.queue, f.priority LIMIT 1
        )
    FROM level AS l WHERE l.priority IS NOT NULL
),

first AS (
    SELECT
        l.queue,
        min(x.due) AS due
    FROM clock AS c
    CROSS JOIN level AS l
    CROSS JOIN LATERAL (
        SELECT f.due FROM stoker.ready AS f
        WHERE f.queue = l.queue AND f.priority = l.priority AND f.due > c.now - $3::bigint
        ORDER BY f.queue, f.priority, f.due LIMIT 1
    ) AS x
    WHERE l.priority IS NOT NULL
    GROUP BY l.queue
)

SELECT
    c.now,
    g.name,
    g.paused,
    g.paused_until,
    g.cool_until,
    least(
        f.due,
        (SELECT s.due FROM stoker.subqueue AS s WHERE s.queue = g.name AND s.open LIMIT 1),
        (
            SELECT s.next FROM stoker.subqueue AS s
            WHERE
                s.queue = g.name AND s.next IS NOT NULL
                AND s.running < coalesce(s.pinned, s.number, s.running + 1)
            ORDER BY s.queue, s.next LIMIT 1
        ),
        (SELECT min(coalesce(s.look, 0)) FROM stoker.subqueue_log AS s WHERE s.queue = g.name)
    ) AS due,
    g.rate_n,
    g.rate_per,
    g.rate_burst,
    g.tokens,
    g.refilled
FROM clock AS c
CROSS JOIN gate AS g
LEFT JOIN first AS f ON f.queue = g.name
