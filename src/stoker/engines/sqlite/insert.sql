-- name: insert_undo
DELETE FROM stoker_body WHERE seq BETWEEN ?1 AND ?2
