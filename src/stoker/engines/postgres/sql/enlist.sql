-- The first lease of a worker that was never reaped.
INSERT INTO stoker.worker (name, until, lease)
SELECT $2::text, coalesce($1::bigint, stoker.clock()) + $3::bigint, $3::bigint
WHERE NOT EXISTS (SELECT 1 FROM stoker.retired AS r WHERE r.name = $2::text)
ON CONFLICT (name) DO NOTHING
