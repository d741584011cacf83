-- When those of some jobs expire that are stored; NULL: it has not ended. One look into each index per job (ended.sql).
SELECT x.id, d.expires
FROM unnest($1::uuid[]) AS x (id)
CROSS JOIN LATERAL (SELECT 1 AS one FROM stoker.job AS f WHERE f.id = x.id LIMIT 1) AS j
LEFT JOIN LATERAL (SELECT f.expires FROM stoker.done AS f WHERE f.id = x.id LIMIT 1) AS d ON true
