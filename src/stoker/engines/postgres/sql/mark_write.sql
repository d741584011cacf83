INSERT INTO stoker.mark (name, id) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET id = excluded.id
