INSERT INTO stoker_running (wid, seq, token, qid, attempts, claimed, cancel)
SELECT ?5, seq, max(?6, token + 1), ?7, attempts + 1, ?6, 0
FROM stoker_ready
WHERE qid = ?1 AND priority = ?2 AND (due, id) <= (?3, ?4)
