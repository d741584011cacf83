INSERT INTO stoker_ready (qid, priority, due, id, seq, attempts, token, status, past)
SELECT qid, priority, due, id, seq, 0, 0, 0, 0
FROM stoker_body
WHERE seq BETWEEN ?1 AND ?2
