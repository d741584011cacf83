INSERT INTO stoker.received (source, id, until) SELECT $1::text, u, $3::bigint FROM unnest($2::text[]) AS u
ON CONFLICT (source, id) DO NOTHING
RETURNING id
