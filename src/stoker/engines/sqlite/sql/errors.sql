SELECT seq, at, attempt, error FROM stoker_errors
WHERE seq IN (SELECT value FROM json_each(?1)) AND attempt IS NOT NULL
ORDER BY seq, n
