INSERT INTO stoker.remembered (id, at) SELECT u.id, $2::bigint FROM unnest($1::uuid[]) AS u (id)
ON CONFLICT (id) DO UPDATE SET at = excluded.at
