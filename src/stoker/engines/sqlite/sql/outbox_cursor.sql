SELECT
    c.rid, k.name, c.pid, c.position, c.attempts, c.last_error, c.holder, c.token, c.until, c.due, c.served, c.size,
    c.failures, c.parked, k.paused
FROM stoker_streams AS s
JOIN stoker_consumers AS k ON k.sid = s.sid AND k.name = ?2
JOIN stoker_cursors AS c ON c.rid = k.rid AND c.pid = s.sid * 64 + ?3
WHERE s.name = ?1
