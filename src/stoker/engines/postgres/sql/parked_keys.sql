SELECT key FROM stoker.parked WHERE rid = $1::int AND pid = $2::int
