SELECT
    rid, place, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
FROM stoker_letters
WHERE rid = ?1 AND place = ?2
