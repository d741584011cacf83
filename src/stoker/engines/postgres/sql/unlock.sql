DELETE FROM stoker.lock WHERE name = $1
