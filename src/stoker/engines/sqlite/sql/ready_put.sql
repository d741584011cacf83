INSERT INTO stoker_ready (qid, priority, due, id, seq, attempts, token, status, past, settled)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
