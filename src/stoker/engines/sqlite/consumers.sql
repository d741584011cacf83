-- name: outbox_stream_names
SELECT name FROM stoker_streams ORDER BY name

-- name: outbox_states
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

-- name: outbox_consumer
SELECT k.rid, s.sid
FROM stoker_streams AS s
JOIN stoker_consumers AS k ON k.sid = s.sid AND k.name = ?2
WHERE s.name = ?1

-- name: outbox_passed
-- How far every consumer of a stream has come, per partition, and how far it is deleted.
SELECT c.pid, min(c.position), p.swept
FROM stoker_consumers AS k
JOIN stoker_cursors AS c ON c.rid = k.rid
JOIN stoker_partitions AS p ON p.pid = c.pid
WHERE k.sid = ?1
GROUP BY c.pid, p.swept
HAVING min(c.position) > p.swept
ORDER BY c.pid

-- name: outbox_consumer_pause
UPDATE stoker_consumers SET paused = ?2 WHERE rid = ?1

-- name: outbox_ages
SELECT place, created FROM stoker_messages WHERE place > ?1 AND place <= ?2 ORDER BY place LIMIT ?3

-- name: parked_release
UPDATE stoker_parked SET released = 1
WHERE rid = ?1 AND pid BETWEEN ?2 * 64 AND ?2 * 64 + 63 AND key = ?3
RETURNING pid

-- name: outbox_delete
DELETE FROM stoker_messages WHERE place > ?1 AND place <= ?2

-- name: drop_consumer
DELETE FROM stoker_consumers WHERE rid = ?1

-- name: drop_consumer_cursors
DELETE FROM stoker_cursors WHERE rid = ?1

-- name: drop_consumer_letters
DELETE FROM stoker_letters WHERE rid = ?1

-- name: drop_consumer_parked
DELETE FROM stoker_parked WHERE rid = ?1

-- name: outbox_partition_swept
UPDATE stoker_partitions SET swept = ?2 WHERE pid = ?1
