SELECT id, options FROM stoker.job WHERE id = ANY($1::uuid[])
