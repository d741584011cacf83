DELETE FROM stoker.audit WHERE at < $1 RETURNING n
