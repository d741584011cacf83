SELECT schedule FROM stoker.schedule WHERE name = $1 FOR UPDATE
