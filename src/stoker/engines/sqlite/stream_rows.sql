-- name: outbox_cursor_write
UPDATE stoker_cursors
SET
    position = ?3, attempts = ?4, last_error = ?5, holder = ?6, token = ?7, until = ?8, due = ?9, served = ?10,
    size = ?11, failures = ?12, parked = ?13
WHERE rid = ?1 AND pid = ?2
