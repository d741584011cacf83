INSERT INTO stoker.consumer (sid, name) VALUES ($1::int, $2::text) ON CONFLICT (sid, name) DO NOTHING RETURNING rid
