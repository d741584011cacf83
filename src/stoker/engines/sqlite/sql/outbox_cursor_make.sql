INSERT INTO stoker_cursors (rid, pid, position, attempts, token, due, served, failures, parked)
VALUES (?1, ?2, ?3, 0, 0, 0, 0, 0, 0)
