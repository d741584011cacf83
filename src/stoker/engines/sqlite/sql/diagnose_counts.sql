-- Counters by queue beside what is really there, counted up to ?1: what, queue (NULL: all), counter, found.
WITH n AS (
    SELECT
        c.qid, q.name,
        sum(CASE WHEN c.what IN (0, 2) THEN c.n ELSE 0 END) AS waiting,
        sum(CASE WHEN c.what = 1 THEN c.n ELSE 0 END) AS running
    FROM stoker_counts AS c JOIN stoker_queues AS q ON q.qid = c.qid
    WHERE c.what < 8
    GROUP BY c.qid, q.name
)
SELECT
    'waiting', name, waiting,
    (
        SELECT count(*) FROM (
            SELECT 1 FROM stoker_ready AS r WHERE r.qid = n.qid
            UNION ALL
            SELECT 1 FROM stoker_subqueues AS g CROSS JOIN stoker_ready AS r ON r.qid = -g.sid WHERE g.qid = n.qid
            LIMIT ?1
        )
    )
FROM n
UNION ALL
SELECT
    'running', name, running,
    (SELECT count(*) FROM (SELECT 1 FROM stoker_running AS u WHERE u.qid = n.qid LIMIT ?1))
FROM n
UNION ALL
SELECT
    CASE s.what WHEN 4 THEN 'dead' WHEN 5 THEN 'canceled' WHEN 6 THEN 'discarded' ELSE 'retried' END, q.name,
    sum(s.n),
    (
        SELECT count(*) FROM (
            SELECT 1 FROM stoker_done AS d WHERE d.qid = s.qid AND d.status = s.what AND d.status > 3 LIMIT ?1
        )
    )
FROM stoker_counts AS s JOIN stoker_queues AS q ON q.qid = s.qid
WHERE s.what BETWEEN 4 AND 7
GROUP BY s.qid, s.what, q.name
UNION ALL
SELECT
    'retrying', NULL, coalesce((SELECT sum(n) FROM stoker_counts WHERE what = 2), 0),
    (SELECT count(*) FROM (SELECT 1 FROM stoker_ready WHERE status = 2 LIMIT ?1))
UNION ALL
SELECT
    'finished', NULL, coalesce((SELECT sum(n) FROM stoker_counts WHERE what BETWEEN 3 AND 7), 0),
    (SELECT count(*) FROM (SELECT 1 FROM stoker_done LIMIT ?1))
