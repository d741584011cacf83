INSERT INTO stoker_workers (name, lease_until)
VALUES (?1, ?2 + ?3)
ON CONFLICT (name) DO NOTHING
RETURNING wid, ?2
