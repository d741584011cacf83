-- Letters of a partition by their numbers, locked.
SELECT
    pid, number, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
FROM stoker.letter
WHERE rid = $1::int AND pid = $2::int AND number = ANY($3::bigint[])
ORDER BY number
FOR UPDATE
