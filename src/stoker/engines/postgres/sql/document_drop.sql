DELETE FROM stoker.document WHERE sort = $1 AND name = $2 AND document = $3 RETURNING 1
