SELECT key FROM stoker.parked WHERE rid = $1::int AND pid = $2::int AND released ORDER BY since, key LIMIT 1
