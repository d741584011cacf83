-- name: letter
SELECT
    rid, place, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
FROM stoker_letters
WHERE rid = ?1 AND place = ?2

-- name: letter_due
SELECT
    rid, place, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
FROM stoker_letters
WHERE rid = ?1 AND due = 1 AND place BETWEEN ?2 AND ?3
ORDER BY place
LIMIT 1

-- name: letters_parked
SELECT
    rid, place, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
FROM stoker_letters
WHERE rid = ?1 AND key = ?2 AND status = 'parked' AND place BETWEEN ?3 AND ?4
ORDER BY place
LIMIT ?5

-- name: letter_put
INSERT OR REPLACE INTO stoker_letters (
    rid, place, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)

-- name: letter_change
UPDATE stoker_letters
SET
    failed = ?3, status = ?4, due = ?5, attempts = ?6, holder = ?7, token = ?8, until = ?9, ended = ?10, reason = ?11
WHERE rid = ?1 AND place = ?2

-- name: letter_delete
DELETE FROM stoker_letters WHERE rid = ?1 AND place = ?2

-- name: letters
-- Letters of one consumer behind a place of the listing, latest failure first.
SELECT
    rid, place, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
FROM stoker_letters
WHERE
    rid = ?1 AND failed <= ?2 AND (failed < ?2 OR place > ?3)
    AND status IN (SELECT value FROM json_each(?4))
    AND (?5 IS NULL OR key = ?5)
    AND (?6 IS NULL OR (place >> 40 & 63) = ?6)
    AND (?7 IS NULL OR type = ?7)
    AND (?8 IS NULL OR hex(id) IN (SELECT value FROM json_each(?8)))
    AND (?9 IS NULL OR due = ?9)
ORDER BY failed DESC, place
LIMIT ?10

-- name: letters_count
SELECT count(*)
FROM stoker_letters
WHERE
    rid = ?1 AND failed <= ?2 AND (failed < ?2 OR place > ?3)
    AND status IN (SELECT value FROM json_each(?4))
    AND (?5 IS NULL OR key = ?5)
    AND (?6 IS NULL OR (place >> 40 & 63) = ?6)
    AND (?7 IS NULL OR type = ?7)
    AND (?8 IS NULL OR hex(id) IN (SELECT value FROM json_each(?8)))
    AND (?9 IS NULL OR due = ?9)

-- name: outbox_consumers
SELECT k.rid, k.sid, s.name, k.name
FROM stoker_streams AS s
JOIN stoker_consumers AS k ON k.sid = s.sid
WHERE (?1 IS NULL OR s.name = ?1) AND (?2 IS NULL OR k.name = ?2)

-- name: parked_put
INSERT INTO stoker_parked (rid, pid, key, since, reason, released) VALUES (?1, ?2, ?3, ?4, ?5, 0)
ON CONFLICT DO UPDATE SET reason = excluded.reason, released = 0

-- name: parked_drop
DELETE FROM stoker_parked WHERE rid = ?1 AND pid = ?2 AND key = ?3

-- name: parked_count
SELECT count(*) FROM stoker_parked WHERE rid = ?1 AND pid = ?2
