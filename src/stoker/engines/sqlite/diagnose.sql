-- name: diagnose_counts
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

-- name: diagnose_keys
-- Of the first ?1 unique keys: how many are held by a job that is finished or gone, and are not kept for a time.
SELECT count(*)
FROM (SELECT seq, until FROM stoker_dedupe ORDER BY slot LIMIT ?1) AS k
LEFT JOIN stoker_body AS b ON b.seq = k.seq
WHERE k.until IS NULL AND (b.seq IS NULL OR EXISTS (SELECT 1 FROM stoker_done AS d WHERE d.id = b.id))

-- name: diagnose_placeless
-- Of the first and the last ?1 jobs those that neither wait nor run nor are finished.
WITH some AS (
    SELECT id FROM (SELECT id FROM stoker_body ORDER BY id LIMIT ?1)
    UNION
    SELECT id FROM (SELECT id FROM stoker_body ORDER BY id DESC LIMIT ?1)
)
SELECT r.id
FROM some CROSS JOIN stoker_records AS r ON r.id = some.id
WHERE
    r.status IS NULL
    AND r.seq NOT IN (
        SELECT n.seq FROM stoker_running AS n JOIN stoker_workers AS w ON w.wid = n.wid WHERE w.lease_until IS NOT NULL
    )
LIMIT 20

-- name: diagnose_bodiless
-- Of the first ?1 waiting jobs those whose body is gone.
SELECT r.id
FROM (SELECT id, seq FROM stoker_ready LIMIT ?1) AS r
WHERE NOT EXISTS (SELECT 1 FROM stoker_body AS b WHERE b.seq = r.seq)
LIMIT 20

-- name: diagnose_groups
-- The last ?1 groups and their callbacks.
SELECT g.id, j.callbacks
FROM (SELECT id FROM stoker_groups ORDER BY id DESC LIMIT ?1) AS g LEFT JOIN stoker_group_jobs AS j ON j.id = g.id
