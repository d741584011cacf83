-- Every cursor of a stream, with the time of the first message behind it.
SELECT
    c.rid, k.name, c.pid, c.position, c.attempts, c.last_error, c.holder, c.token, c.until, c.due, c.served, c.size,
    c.failures, c.parked, k.paused,
    (
        SELECT m.created FROM stoker_messages AS m
        WHERE m.place > (c.pid << 40) + c.position AND m.place < c.pid + 1 << 40
        ORDER BY m.place LIMIT 1
    )
FROM stoker_consumers AS k
JOIN stoker_cursors AS c ON c.rid = k.rid
WHERE k.sid = ?1
ORDER BY k.name, c.pid
