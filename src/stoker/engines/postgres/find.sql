-- name: ahead
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

-- name: ended
-- Those of the jobs that have ended or are gone. One look into each index per job, however the planner feels.
SELECT x.id
FROM unnest($1::uuid[]) AS x (id)
LEFT JOIN LATERAL (SELECT 1 AS one FROM stoker.done AS f WHERE f.id = x.id LIMIT 1) AS d ON true
LEFT JOIN LATERAL (SELECT 1 AS one FROM stoker.job AS f WHERE f.id = x.id LIMIT 1) AS j ON true
WHERE d.one IS NOT NULL OR j.one IS NULL

-- name: find_by_end
-- Places of unsuccessful jobs of these statuses ($4) behind one ($1, $2), latest end first, at most $3.
SELECT x.finished, x.id
FROM unnest($4::smallint[]) AS s (status)
CROSS JOIN LATERAL (
    SELECT d.finished, d.id FROM stoker.done AS d
    WHERE d.status = s.status AND d.status <> 3 AND (d.finished, d.id) < ($1::bigint, $2::uuid)
    ORDER BY d.status DESC, d.finished DESC, d.id DESC LIMIT $3
) AS x
ORDER BY x.finished DESC, x.id DESC LIMIT $3

-- name: find_by_end_done
-- Places of done jobs that ended at $4 or later, behind one ($1, $2), latest end first, at most $3.
SELECT d.finished, d.id FROM stoker.done AS d
WHERE d.finished >= $4 AND d.finished <= $1::bigint AND d.status = 3 AND (d.finished, d.id) < ($1::bigint, $2::uuid)
ORDER BY d.finished DESC, d.id DESC LIMIT $3

-- name: find_by_due
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

-- name: find_by_retry
-- Places of jobs that wait for a retry behind one ($1, $2), soonest first, at most $3.
SELECT r.due, r.id FROM stoker.ready AS r
WHERE r.status = 2 AND (r.due, r.id) > ($1::bigint, $2::uuid)
ORDER BY r.due, r.id LIMIT $3
