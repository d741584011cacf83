SELECT id, sealed, abandoned, total, done, dead, canceled, qid, created, touched, closed, expires
FROM stoker_groups WHERE id = ?1
