-- The cursors of a consumer, or of all consumers of a stream, with the end of the holder's own lease, and whether there
-- is something to deliver: a message, a letter of a released key, a letter that is due.
SELECT
    c.rid, k.name, c.pid, c.position, c.attempts, c.last_error, c.holder, c.token, c.until, c.due, c.served, c.size,
    c.failures, c.parked, k.paused, w.lease_until,
    EXISTS (
        SELECT 1 FROM stoker_messages AS m
        WHERE m.place > (c.pid << 40) + c.position AND m.place < c.pid + 1 << 40
    ) OR EXISTS (
        SELECT 1 FROM stoker_letters AS l
        WHERE l.rid = c.rid AND l.due = 1 AND l.place BETWEEN c.pid << 40 AND (c.pid + 1 << 40) - 1
    ) OR (
        c.parked > 0 AND EXISTS (
            SELECT 1 FROM stoker_parked AS p WHERE p.rid = c.rid AND p.pid = c.pid AND p.released = 1
        )
    )
FROM stoker_streams AS s
JOIN stoker_consumers AS k ON k.sid = s.sid
JOIN stoker_cursors AS c ON c.rid = k.rid
LEFT JOIN stoker_workers AS w ON w.name = c.holder
WHERE s.name = ?1 AND (?2 IS NULL OR k.name = ?2)
ORDER BY k.name, c.pid
