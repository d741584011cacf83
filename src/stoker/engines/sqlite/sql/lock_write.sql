INSERT INTO stoker_locks (name, owner, until) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until
