INSERT INTO stoker_consumers (sid, name, paused) VALUES (?1, ?2, 0) ON CONFLICT DO NOTHING RETURNING rid
