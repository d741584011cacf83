SELECT
    pid, number, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
FROM stoker.letter
WHERE rid = $1::int AND pid = $2::int AND due
ORDER BY rid, pid, number
LIMIT 1
