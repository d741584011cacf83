SELECT
    rid, place, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
FROM stoker_letters
WHERE rid = ?1 AND due = 1 AND place BETWEEN ?2 AND ?3
ORDER BY place
LIMIT 1
