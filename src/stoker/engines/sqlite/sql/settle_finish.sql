INSERT INTO stoker_done (id, seq, qid, status, token, attempts, started, finished, expires, cancel, settled, result)
VALUES (?1, ?2, ?3, 3, ?4, ?5, ?6, ?7, ?8, 0, 3, ?9)
