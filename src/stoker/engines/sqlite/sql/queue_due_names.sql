-- All queues, and whether a subqueue of each has a job that may start by ?1.
SELECT
    q.qid,
    q.name,
    EXISTS (SELECT 1 FROM stoker_subqueues AS s WHERE s.qid = q.qid AND s.open = 1)
    OR EXISTS (
        SELECT 1 FROM stoker_subqueues AS s
        WHERE s.qid = q.qid AND s.next <= ?1 AND s.running < coalesce(s.pinned, s.number, s.running + 1)
    )
FROM stoker_queues AS q
