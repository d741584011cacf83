-- name: settle_fence
DELETE FROM stoker_running WHERE wid = ?1 AND seq = ?2 AND token = ?3 AND cancel = 0
