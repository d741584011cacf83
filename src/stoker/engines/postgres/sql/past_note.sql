-- Jobs were asked to stop, perhaps with a reason; the moment of the first request stays.
INSERT INTO stoker.past AS p (id, asked, metadata) SELECT u.id, $3::bigint, $2::jsonb FROM unnest($1::uuid[]) AS u (id)
ON CONFLICT (id) DO UPDATE SET
    asked = coalesce(p.asked, excluded.asked),
    metadata = CASE WHEN excluded.metadata IS NULL THEN p.metadata
        ELSE coalesce(p.metadata, '{}'::jsonb) || excluded.metadata END
