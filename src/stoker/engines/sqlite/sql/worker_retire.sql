INSERT INTO stoker_workers (name, lease_until) VALUES (?1, NULL) ON CONFLICT (name) DO NOTHING
