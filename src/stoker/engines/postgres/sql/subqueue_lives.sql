SELECT 1 FROM stoker.worker WHERE name = $1 AND until >= $2
