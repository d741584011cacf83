SELECT key FROM stoker_parked WHERE rid = ?1 AND pid = ?2 AND released = 1 ORDER BY since, key LIMIT 1
