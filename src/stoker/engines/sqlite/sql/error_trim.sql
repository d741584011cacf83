DELETE FROM stoker_errors
WHERE seq = ?1 AND n <= (
    SELECT n FROM stoker_errors WHERE seq = ?1 AND attempt IS NOT NULL ORDER BY n DESC LIMIT 1 OFFSET ?2
)
