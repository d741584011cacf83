INSERT INTO stoker_remembered (id, at) VALUES (?1, ?2) ON CONFLICT (id) DO NOTHING RETURNING 1
