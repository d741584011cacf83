INSERT INTO stoker.past AS p (id, metadata) SELECT u.id, $2::jsonb FROM unnest($1::uuid[]) AS u (id)
ON CONFLICT (id) DO UPDATE SET metadata = coalesce(p.metadata, '{}'::jsonb) || excluded.metadata
