-- Counters of waiting and running jobs in queues in which none waits or runs.
SELECT c.qid, q.name, c.kind, c.what, c.n
FROM stoker_counts AS c JOIN stoker_queues AS q ON q.qid = c.qid
WHERE
    c.n <> 0
    AND (
        (
            c.what IN (0, 2)
            AND NOT EXISTS (SELECT 1 FROM stoker_ready AS r WHERE r.qid = c.qid)
            AND NOT EXISTS (
                SELECT 1 FROM stoker_subqueues AS g CROSS JOIN stoker_ready AS r ON r.qid = -g.sid WHERE g.qid = c.qid
            )
        )
        OR (c.what = 1 AND NOT EXISTS (SELECT 1 FROM stoker_running AS u WHERE u.qid = c.qid))
    )
