-- Of the first $1 unique keys: how many are held by a job that is finished or gone.
SELECT count(*)
FROM (SELECT id FROM stoker.dedupe ORDER BY slot LIMIT $1) AS k
LEFT JOIN LATERAL (SELECT 1 AS found FROM stoker.done AS d WHERE d.id = k.id LIMIT 1) AS d ON true
LEFT JOIN LATERAL (SELECT 1 AS found FROM stoker.job AS j WHERE j.id = k.id LIMIT 1) AS j ON true
WHERE d.found IS NOT NULL OR j.found IS NULL
