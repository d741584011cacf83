DELETE FROM stoker.event WHERE job = ANY($1::uuid[]) RETURNING n
