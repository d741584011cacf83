SELECT at, attempt, error FROM stoker_errors WHERE seq = ?1 ORDER BY n
