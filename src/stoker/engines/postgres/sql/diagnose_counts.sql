-- Counters by queue beside what is really there, counted up to $1: what, queue (NULL: all), counter, found.
WITH n AS MATERIALIZED (
    SELECT
        queue, sum(pending) AS pending, sum(running) AS running, sum(retrying) AS retrying, sum(done) AS done,
        sum(dead) AS dead, sum(canceled) AS canceled, sum(discarded) AS discarded, sum(retried) AS retried
    FROM (
        SELECT queue, pending, running, retrying, done, dead, canceled, discarded, retried FROM stoker.tally
        UNION ALL
        SELECT
            queue, coalesce(pending, 0), coalesce(running, 0), coalesce(retrying, 0), coalesce(done, 0),
            coalesce(dead, 0), coalesce(canceled, 0), coalesce(discarded, 0), coalesce(retried, 0)
        FROM stoker.delta
    ) AS x
    GROUP BY queue
)
SELECT
    'waiting', n.queue, (n.pending + n.retrying)::bigint,
    (
        SELECT count(*) FROM (
            SELECT 1 FROM stoker.ready AS r WHERE r.queue = n.queue
            UNION ALL
            SELECT 1 FROM stoker.subqueue_line AS s JOIN stoker.ready AS r ON r.queue = s.line WHERE s.queue = n.queue
            LIMIT $1
        ) AS x
    )
FROM n
UNION ALL
SELECT
    'running', n.queue, n.running::bigint,
    coalesce((SELECT sum(bit_count(l.open)) FROM stoker.lease AS l WHERE l.queue = n.queue), 0)::bigint
FROM n
UNION ALL
SELECT
    s.status, n.queue, s.counter::bigint,
    (
        SELECT count(*) FROM (
            SELECT 1 FROM stoker.done AS d
            WHERE d.queue = n.queue AND d.status = s.code AND d.status <> 3 LIMIT $1
        ) AS x
    )
FROM n CROSS JOIN LATERAL (
    VALUES ('dead', 4, n.dead), ('canceled', 5, n.canceled), ('discarded', 6, n.discarded), ('retried', 7, n.retried)
) AS s (status, code, counter)
UNION ALL
SELECT
    'retrying', NULL, coalesce(sum(n.retrying), 0)::bigint,
    (SELECT count(*) FROM (SELECT 1 FROM stoker.ready AS r WHERE r.status = 2 LIMIT $1) AS x)
FROM n
UNION ALL
SELECT
    'finished', NULL, coalesce(sum(n.done + n.dead + n.canceled + n.discarded + n.retried), 0)::bigint,
    (SELECT count(*) FROM (SELECT 1 FROM stoker.done LIMIT $1) AS x)
FROM n
