DELETE FROM stoker.done WHERE id = ANY($1::uuid[])
