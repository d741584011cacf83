DELETE FROM stoker.past WHERE id = ANY($1::uuid[])
