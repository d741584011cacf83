-- name: census_counts
-- All numbers by queue and kind: what is folded and what is not yet. The latter is added up first, as small numbers.
SELECT
    queue, kind, sum(pending)::bigint, sum(running)::bigint, sum(retrying)::bigint, sum(done)::bigint,
    sum(dead)::bigint, sum(canceled)::bigint, sum(discarded)::bigint, sum(retried)::bigint, sum(enqueued)::bigint,
    sum(completed)::bigint, sum(retries)::bigint, sum(failed)::bigint, sum(cancels)::bigint
FROM (
    SELECT * FROM stoker.tally
    UNION ALL
    SELECT
        queue, kind, sum(pending), sum(running), sum(retrying), sum(done), sum(dead), sum(canceled), sum(discarded),
        sum(retried), sum(enqueued), sum(completed), sum(retries), sum(failed), sum(cancels)
    FROM stoker.delta GROUP BY queue, kind
) AS n
GROUP BY queue, kind
ORDER BY queue, kind

-- name: census_troubles
SELECT kind, error
FROM (SELECT DISTINCT ON (kind) kind, error FROM stoker.trouble ORDER BY kind, n DESC) AS t
WHERE error IS NOT NULL

-- name: census_lines
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

-- name: census_sides
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

-- name: census_subqueues
-- Waiting jobs of subqueues, by queue: how many are not due, and when the oldest due one became due.
SELECT
    s.queue,
    count(*) FILTER (WHERE r.due > $1 AND r.status = 0),
    min(r.due) FILTER (WHERE r.due <= $1 AND r.status = 0),
    count(*) FILTER (WHERE r.status = 0)
FROM stoker.subqueue_line AS s
JOIN stoker.ready AS r ON r.queue = s.line
GROUP BY s.queue

-- name: census_waiting
-- Suspended jobs that are not due, by queue.
SELECT coalesce(s.queue, r.line), sum(r.n)::bigint
FROM (
    SELECT queue AS line, count(*) AS n FROM stoker.ready WHERE settled IN (8, 9) AND due > $1 GROUP BY queue
) AS r
LEFT JOIN stoker.subqueue_line AS s ON s.line = r.line
GROUP BY 1

-- name: census_running
-- Per queue: the earliest claim that runs, the first lease and how many there are, from lease $1 on (`CensusBounds`).
-- The order keeps the server to the index of ids: that of workers has the ids too, and all of it would be read.
SELECT queue, min(claimed), min(id), count(*)
FROM (SELECT queue, claimed, id FROM stoker.lease WHERE id >= $1::bigint ORDER BY id OFFSET 0) AS l
GROUP BY queue

-- name: census_entries
-- How many index entries of waiting jobs and leases this session has read, dead ones too, and the newest lease's number.
-- Of the former only differences within one transaction mean anything.
-- The rest of the transaction does without bitmaps. A server that takes a table for nearly empty, because it is when
-- dead entries do not count, would choose them, read whole ranges and sort, where one entry is asked for.
SELECT
    pg_stat_get_xact_tuples_returned('stoker.ready_pkey'::regclass)
    + pg_stat_get_xact_tuples_returned('stoker.lease_pkey'::regclass),
    coalesce(pg_sequence_last_value('stoker.lease_number'::regclass), 1),
    set_config('enable_bitmapscan', 'off', true)
