UPDATE stoker.budget SET capacity = $2, rate = $3, tokens = $4, refilled = $5 WHERE name = $1
