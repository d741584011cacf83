-- name: group
SELECT id, sealed, abandoned, total, done, dead, canceled, qid, created, touched, closed, expires, placed
FROM stoker_groups WHERE id = ?1

-- name: groups_open
SELECT id FROM stoker_groups
WHERE closed IS NULL AND (created, id) < (?1, ?2) ORDER BY created DESC, id DESC LIMIT ?3

-- name: groups_closed
SELECT id FROM stoker_groups
WHERE closed IS NOT NULL AND (created, id) < (?1, ?2) ORDER BY created DESC, id DESC LIMIT ?3

-- name: group_make
INSERT INTO stoker_groups (
    id, sealed, abandoned, total, done, dead, canceled, qid, created, touched, closed, expires, placed
)
VALUES (?1, ?2, ?3, 0, 0, 0, 0, NULL, ?4, ?4, NULL, NULL, ?5)

-- name: group_place
UPDATE stoker_groups SET placed = ?2 WHERE id = ?1

-- name: group_jobs_make
INSERT INTO stoker_group_jobs (id, callbacks, members) VALUES (?1, ?2, ?3)

-- name: group_jobs
SELECT callbacks, members FROM stoker_group_jobs WHERE id = ?1

-- name: group_members
UPDATE stoker_group_jobs SET members = ?2 WHERE id = ?1

-- name: group_count
-- Group.counted: a closed group is final.
UPDATE stoker_groups SET
    total = total + ?2,
    done = done + ?3,
    dead = dead + ?4,
    canceled = canceled + ?5,
    qid = coalesce(qid, ?6),
    touched = coalesce(?7, touched)
WHERE id = ?1 AND closed IS NULL
RETURNING id, sealed, abandoned, total, done, dead, canceled, qid, created, touched, closed, expires, placed

-- name: group_seal
UPDATE stoker_groups SET sealed = 1, abandoned = ?2 WHERE id = ?1 AND sealed = 0 RETURNING id

-- name: group_close
UPDATE stoker_groups SET closed = ?2, expires = ?3 WHERE id = ?1

-- name: groups_unsealed
SELECT id FROM stoker_groups WHERE sealed = 0 AND touched < ?1 ORDER BY touched LIMIT ?2

-- name: groups_expired
SELECT id FROM stoker_groups WHERE expires < ?1 ORDER BY expires LIMIT ?2

-- name: group_kept
-- When those of some jobs expire that are stored; NULL: it has not ended. Their ids are given one after the other.
WITH RECURSIVE place (i) AS (
    SELECT 1
    UNION ALL
    SELECT i + 16 FROM place WHERE i + 16 < length(?1)
)
SELECT d.expires
FROM place
CROSS JOIN stoker_body AS b ON b.id = substr(?1, i, 16)
LEFT JOIN stoker_done AS d ON d.id = b.id

-- name: group_let_go
-- Done members of a group (?1) that it held (?3) are kept as they asked for, else for ?2 (groups.let_go).
UPDATE stoker_done SET expires = finished + coalesce(
    (SELECT json_extract(CAST(b.options AS TEXT), '$.keep') FROM stoker_body AS b WHERE b.id = stoker_done.id), ?2
)
WHERE
    id IN (
        SELECT x.id FROM stoker_body AS x
        WHERE
            CASE
                WHEN json_valid(CAST(x.options AS TEXT)) THEN json_extract(CAST(x.options AS TEXT), '$.group')
            END = ?1
    )
    AND +status = 3 AND expires - finished = ?3

-- name: delete_group
DELETE FROM stoker_groups WHERE id = ?1

-- name: delete_group_jobs
DELETE FROM stoker_group_jobs WHERE id = ?1
