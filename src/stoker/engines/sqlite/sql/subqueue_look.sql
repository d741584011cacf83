-- What a line holds, priority by priority: its first job, and the first one that is due after ?2.
WITH RECURSIVE p (priority) AS (
    SELECT min(priority) FROM stoker_ready WHERE qid = ?1
    UNION ALL
    SELECT (SELECT min(r.priority) FROM stoker_ready AS r WHERE r.qid = ?1 AND r.priority > p.priority)
    FROM p
    WHERE p.priority IS NOT NULL
)
SELECT
    p.priority,
    (SELECT r.due FROM stoker_ready AS r WHERE r.qid = ?1 AND r.priority = p.priority ORDER BY r.due, r.id LIMIT 1),
    (SELECT r.id FROM stoker_ready AS r WHERE r.qid = ?1 AND r.priority = p.priority ORDER BY r.due, r.id LIMIT 1),
    (SELECT r.due FROM stoker_ready AS r WHERE r.qid = ?1 AND r.priority = p.priority AND r.due > ?2
     ORDER BY r.due LIMIT 1)
FROM p
WHERE p.priority IS NOT NULL
ORDER BY p.priority
