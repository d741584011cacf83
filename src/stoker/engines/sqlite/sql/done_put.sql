INSERT INTO stoker_done (id, seq, qid, status, token, attempts, started, finished, expires, cancel, settled, result, successor)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
