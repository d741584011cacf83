SELECT
    q.qid, q.paused, q.paused_until, q.cool_until, q.rate_n, q.rate_per, q.rate_burst, q.tokens, q.refilled,
    (SELECT s.due FROM stoker_subqueues AS s WHERE s.qid = q.qid AND s.open = 1 LIMIT 1),
    (
        SELECT s.next FROM stoker_subqueues AS s
        WHERE s.qid = q.qid AND s.next IS NOT NULL AND s.running < coalesce(s.pinned, s.number, s.running + 1)
        ORDER BY s.next
        LIMIT 1
    )
FROM stoker_queues AS q
WHERE q.name = ?1
