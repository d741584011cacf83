SELECT id, kind, queue FROM stoker.job WHERE id = ANY($1::uuid[])
