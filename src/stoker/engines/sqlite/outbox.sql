-- name: outbox_append
INSERT INTO stoker_messages (place, created, id, raw, key, type, headers, payload) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)

-- name: outbox_head
-- The place of the newest message of a partition, also when all are deleted. Without such a stream, or with another
-- count of partitions, no row.
SELECT coalesce(
    (
        SELECT max(m.place) FROM stoker_messages AS m
        WHERE m.place BETWEEN p.pid << 40 AND (p.pid + 1 << 40) - 1
    ),
    (p.pid << 40) + p.swept
)
FROM stoker_streams AS s
JOIN stoker_partitions AS p ON p.pid = s.sid * 64 + ?3
WHERE s.name = ?1 AND s.partitions = ?2

-- name: outbox_stream
SELECT sid, partitions, keep FROM stoker_streams WHERE name = ?1

-- name: outbox_stream_make
INSERT INTO stoker_streams (name, partitions, keep) VALUES (?1, ?2, ?3) RETURNING sid

-- name: outbox_stream_keep
UPDATE stoker_streams SET keep = ?2 WHERE sid = ?1

-- name: outbox_partition_make
INSERT INTO stoker_partitions (pid, swept) VALUES (?1, 0)

-- name: outbox_partitions
-- The highest deleted and the highest number of every partition of a stream.
SELECT
    p.pid,
    p.swept,
    coalesce(
        (
            SELECT max(m.place) FROM stoker_messages AS m
            WHERE m.place BETWEEN p.pid << 40 AND (p.pid + 1 << 40) - 1
        ) - (p.pid << 40),
        p.swept
    )
FROM stoker_partitions AS p
WHERE p.pid BETWEEN ?1 * 64 AND ?1 * 64 + 63
ORDER BY p.pid

-- name: outbox_first_since
SELECT place FROM stoker_messages WHERE place BETWEEN ?1 AND ?2 AND created >= ?3 ORDER BY place LIMIT 1

-- name: outbox_consumer_make
INSERT INTO stoker_consumers (sid, name, paused) VALUES (?1, ?2, 0) ON CONFLICT DO NOTHING RETURNING rid

-- name: outbox_cursors
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

-- name: outbox_cursor
SELECT
    c.rid, k.name, c.pid, c.position, c.attempts, c.last_error, c.holder, c.token, c.until, c.due, c.served, c.size,
    c.failures, c.parked, k.paused
FROM stoker_streams AS s
JOIN stoker_consumers AS k ON k.sid = s.sid AND k.name = ?2
JOIN stoker_cursors AS c ON c.rid = k.rid AND c.pid = s.sid * 64 + ?3
WHERE s.name = ?1

-- name: outbox_cursor_make
INSERT INTO stoker_cursors (rid, pid, position, attempts, token, due, served, failures, parked)
VALUES (?1, ?2, ?3, 0, 0, 0, 0, 0, 0)

-- name: outbox_messages
SELECT place, id, created, raw, key, type, headers, payload
FROM stoker_messages
WHERE place > ?1 AND place < ?2
ORDER BY place
LIMIT ?3

-- name: parked_keys
SELECT key FROM stoker_parked WHERE rid = ?1 AND pid = ?2

-- name: parked_released
SELECT key FROM stoker_parked WHERE rid = ?1 AND pid = ?2 AND released = 1 ORDER BY since, key LIMIT 1

-- name: receive
INSERT INTO stoker_received (source, id, until) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING RETURNING 1
