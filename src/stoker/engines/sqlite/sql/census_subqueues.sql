-- Waiting jobs of subqueues, by queue: how many are not due, and when the oldest due one became due.
SELECT
    s.qid,
    sum(r.due > ?1 AND r.status = 0),
    min(CASE WHEN r.due <= ?1 AND r.status = 0 THEN r.due END),
    sum(r.status = 0)
FROM stoker_subqueues AS s
CROSS JOIN stoker_ready AS r ON r.qid = -s.sid
GROUP BY s.qid
