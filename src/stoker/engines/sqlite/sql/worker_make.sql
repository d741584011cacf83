INSERT INTO stoker_workers (name, lease_until) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING RETURNING wid
