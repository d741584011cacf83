DELETE FROM stoker.schedule WHERE name = $1 RETURNING name
