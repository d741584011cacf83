UPDATE stoker.schedule SET schedule = $2 WHERE name = $1 RETURNING name
