DELETE FROM stoker.parked WHERE rid = $1::int
