UPDATE stoker.lock SET owner = $2, until = $3 WHERE name = $1
