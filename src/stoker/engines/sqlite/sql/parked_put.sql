INSERT INTO stoker_parked (rid, pid, key, since, reason, released) VALUES (?1, ?2, ?3, ?4, ?5, 0)
ON CONFLICT DO UPDATE SET reason = excluded.reason, released = 0
