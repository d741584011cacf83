INSERT INTO stoker.parked (rid, pid, key, since, reason) VALUES ($1::int, $2::int, $3::text, $4::bigint, $5::text)
ON CONFLICT (rid, pid, key) DO UPDATE SET reason = excluded.reason, released = false
