INSERT INTO stoker.presence (worker, seen, presence) VALUES ($1, $2, $3)
ON CONFLICT (worker) DO UPDATE SET seen = excluded.seen, presence = excluded.presence
