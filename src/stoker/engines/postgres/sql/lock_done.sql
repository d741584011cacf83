SELECT id FROM stoker.done WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE
