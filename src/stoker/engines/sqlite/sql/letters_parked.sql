SELECT
    rid, place, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
FROM stoker_letters
WHERE rid = ?1 AND key = ?2 AND status = 'parked' AND place BETWEEN ?3 AND ?4
ORDER BY place
LIMIT ?5
