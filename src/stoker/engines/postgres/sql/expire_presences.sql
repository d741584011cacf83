DELETE FROM stoker.presence WHERE seen < $1 RETURNING worker
