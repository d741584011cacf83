SELECT id, claimed, open::text, ids FROM stoker.lease
WHERE worker = ANY($1::text[]) ORDER BY claimed, id LIMIT $2::int FOR UPDATE SKIP LOCKED
