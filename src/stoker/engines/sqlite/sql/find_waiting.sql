SELECT id, seq FROM stoker_ready WHERE qid = ?1
UNION ALL
SELECT r.id, r.seq
FROM stoker_subqueues AS s
CROSS JOIN stoker_ready AS r ON r.qid = -s.sid
WHERE s.qid = ?1
