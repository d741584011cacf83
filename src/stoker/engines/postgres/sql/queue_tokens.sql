UPDATE stoker.queue SET tokens = $2, refilled = $3 WHERE name = $1
