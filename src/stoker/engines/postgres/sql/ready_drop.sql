DELETE FROM stoker.ready WHERE id = ANY($1::uuid[])
