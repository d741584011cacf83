SELECT m.number FROM stoker.message AS m
WHERE m.pid = $1::int AND m.number > $2::bigint AND m.created >= $3::bigint
ORDER BY m.pid, m.number
LIMIT 1
