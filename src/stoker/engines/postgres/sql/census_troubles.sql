SELECT kind, error
FROM (SELECT DISTINCT ON (kind) kind, error FROM stoker.trouble ORDER BY kind, n DESC) AS t
WHERE error IS NOT NULL
