UPDATE stoker.document SET document = $3 WHERE sort = $1 AND name = $2 AND document = $4 RETURNING 1
