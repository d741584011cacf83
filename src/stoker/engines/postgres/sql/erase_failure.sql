DELETE FROM stoker.failure WHERE id = ANY($1::uuid[])
