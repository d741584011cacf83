SELECT id FROM stoker.mark WHERE name = $1
