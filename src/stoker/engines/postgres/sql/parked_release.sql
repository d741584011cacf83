UPDATE stoker.parked SET released = true
WHERE rid = $1::int AND pid BETWEEN $2::int * 64 AND $2::int * 64 + 63 AND key = $3::text
RETURNING pid
