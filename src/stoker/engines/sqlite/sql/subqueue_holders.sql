-- The jobs that hold slots of a subqueue: those that run, and those that wait in the main line with the slot they kept.
SELECT b.id, b.options
FROM stoker_running AS n
CROSS JOIN stoker_body AS b ON b.seq = n.seq
WHERE n.qid = ?1 AND b.options IS NOT NULL
UNION ALL
SELECT b.id, b.options
FROM stoker_ready AS r
CROSS JOIN stoker_body AS b ON b.seq = r.seq
WHERE r.qid = ?1 AND r.past = 1 AND r.settled IN (0, 2) AND b.options IS NOT NULL
