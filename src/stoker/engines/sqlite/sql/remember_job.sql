INSERT INTO stoker_remembered (id, at) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET at = excluded.at
