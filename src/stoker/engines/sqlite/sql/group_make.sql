INSERT INTO stoker_groups (id, sealed, abandoned, total, done, dead, canceled, qid, created, touched, closed, expires)
VALUES (?1, ?2, ?3, 0, 0, 0, 0, NULL, ?4, ?4, NULL, NULL)
