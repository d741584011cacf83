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
