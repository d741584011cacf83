UPDATE stoker_letters
SET
    failed = ?3, status = ?4, due = ?5, attempts = ?6, holder = ?7, token = ?8, until = ?9, ended = ?10, reason = ?11
WHERE rid = ?1 AND place = ?2
