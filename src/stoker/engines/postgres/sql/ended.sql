-- Those of the jobs that have ended or are gone. One look into each index per job, however the planner feels.
SELECT x.id
FROM unnest($1::uuid[]) AS x (id)
LEFT JOIN LATERAL (SELECT 1 AS one FROM stoker.done AS f WHERE f.id = x.id LIMIT 1) AS d ON true
LEFT JOIN LATERAL (SELECT 1 AS one FROM stoker.job AS f WHERE f.id = x.id LIMIT 1) AS j ON true
WHERE d.one IS NOT NULL OR j.one IS NULL
