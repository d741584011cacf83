SELECT at, attempt, error FROM stoker_errors WHERE seq = ?1 AND attempt IS NOT NULL ORDER BY n
