INSERT INTO stoker.stream (name, partitions, keep) VALUES ($1::text, $2::smallint, $3::bigint)
ON CONFLICT (name) DO NOTHING
RETURNING sid
