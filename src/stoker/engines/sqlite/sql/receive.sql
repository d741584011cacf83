INSERT INTO stoker_received (source, id, until) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING RETURNING 1
