SELECT
    pid, number, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
FROM stoker.letter
WHERE rid = $1::int AND pid = $2::int AND key = $3::text AND status = 'parked'
ORDER BY rid, pid, key, number
LIMIT $4::int
