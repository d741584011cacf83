INSERT INTO stoker_troubles (kind, error) VALUES (?1, ?2) ON CONFLICT (kind) DO UPDATE SET error = excluded.error
