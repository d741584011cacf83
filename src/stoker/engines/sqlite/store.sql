-- name: now
SELECT high FROM stoker_clock

-- name: now_writing
UPDATE stoker_clock SET high = high RETURNING high
