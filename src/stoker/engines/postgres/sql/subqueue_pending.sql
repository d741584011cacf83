SELECT n, name, freed, look, options, anew FROM stoker.subqueue_log WHERE queue = $1 ORDER BY n
