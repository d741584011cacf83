-- name: groups_kept
-- The parts of `model.kept`. Each reads ?4 rows behind the place ?1, ?2, ?3, counts them all, or swaps the values of one:
-- ?4 to ?6 as they were read, ?7 to ?9 as they become.
SELECT 0, 0, id, '', '', NULL, callbacks, NULL, NULL FROM stoker_group_jobs WHERE id > ?3 ORDER BY id LIMIT ?4

-- name: groups_count_kept
SELECT count(*) FROM stoker_group_jobs

-- name: groups_swap
UPDATE stoker_group_jobs SET callbacks = ?7 WHERE id = ?3 AND callbacks = ?4 AND ?10 IS NULL RETURNING 1

-- name: kinds_kept
SELECT 0, 0, kind, kind, '', NULL, NULL, NULL, error FROM stoker_troubles WHERE kind > ?3 ORDER BY kind LIMIT ?4

-- name: kinds_count_kept
SELECT count(*) FROM stoker_troubles

-- name: kinds_swap
UPDATE stoker_troubles SET error = ?9 WHERE kind = ?3 AND error = ?6 AND ?10 IS NULL RETURNING 1

-- name: messages_kept
SELECT m.place, 0, '', s.name, '', m.id, m.payload, m.headers, NULL
FROM stoker_messages AS m
JOIN stoker_streams AS s ON s.sid = m.place >> 46
WHERE m.place > ?1
ORDER BY m.place
LIMIT ?4

-- name: messages_count_kept
SELECT count(*) FROM stoker_messages

-- name: messages_swap
UPDATE stoker_messages SET payload = ?7, headers = ?8
WHERE place = ?1 AND id = ?10 AND payload IS ?4 AND headers IS ?5
RETURNING 1

-- name: letters_kept
SELECT l.rid, l.place, '', s.name, k.name, l.id, l.payload, l.headers, l.reason
FROM stoker_letters AS l
JOIN stoker_consumers AS k ON k.rid = l.rid
JOIN stoker_streams AS s ON s.sid = k.sid
WHERE (l.rid, l.place) > (?1, ?2)
ORDER BY l.rid, l.place
LIMIT ?4

-- name: letters_count_kept
SELECT count(*) FROM stoker_letters

-- name: letters_swap
UPDATE stoker_letters SET payload = ?7, headers = ?8, reason = ?9
WHERE rid = ?1 AND place = ?2 AND id = ?10 AND payload = ?4 AND headers IS ?5 AND reason = ?6
RETURNING 1

-- name: cursors_kept
SELECT c.rid, c.pid, '', s.name, k.name, NULL, NULL, NULL, c.last_error
FROM stoker_cursors AS c
JOIN stoker_consumers AS k ON k.rid = c.rid
JOIN stoker_streams AS s ON s.sid = k.sid
WHERE (c.rid, c.pid) > (?1, ?2) AND c.last_error IS NOT NULL
ORDER BY c.rid, c.pid
LIMIT ?4

-- name: cursors_count_kept
SELECT count(*) FROM stoker_cursors WHERE last_error IS NOT NULL

-- name: cursors_swap
UPDATE stoker_cursors SET last_error = ?9 WHERE rid = ?1 AND pid = ?2 AND last_error = ?6 AND ?10 IS NULL RETURNING 1

-- name: parked_kept
SELECT p.rid, p.pid, p.key, s.name, k.name, NULL, NULL, NULL, p.reason
FROM stoker_parked AS p
JOIN stoker_consumers AS k ON k.rid = p.rid
JOIN stoker_streams AS s ON s.sid = k.sid
WHERE (p.rid, p.pid, p.key) > (?1, ?2, ?3)
ORDER BY p.rid, p.pid, p.key
LIMIT ?4

-- name: parked_count_kept
SELECT count(*) FROM stoker_parked

-- name: parked_swap
UPDATE stoker_parked SET reason = ?9 WHERE rid = ?1 AND pid = ?2 AND key = ?3 AND reason = ?6 AND ?10 IS NULL RETURNING 1
