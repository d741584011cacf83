-- Lines in which jobs wait and whose subqueue is gone, at most ?1.
WITH RECURSIVE line (qid) AS (
    SELECT min(qid) FROM stoker_ready WHERE qid < 0
    UNION ALL
    SELECT (SELECT min(r.qid) FROM stoker_ready AS r WHERE r.qid > line.qid AND r.qid < 0)
    FROM line WHERE line.qid IS NOT NULL
)
SELECT qid FROM line
WHERE qid IS NOT NULL AND NOT EXISTS (SELECT 1 FROM stoker_subqueues AS s WHERE s.sid = -line.qid)
LIMIT ?1
