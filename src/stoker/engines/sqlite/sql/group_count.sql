-- Group.counted: a closed group is final.
UPDATE stoker_groups SET
    total = total + ?2,
    done = done + ?3,
    dead = dead + ?4,
    canceled = canceled + ?5,
    qid = coalesce(qid, ?6),
    touched = coalesce(?7, touched)
WHERE id = ?1 AND closed IS NULL
RETURNING id, sealed, abandoned, total, done, dead, canceled, qid, created, touched, closed, expires
