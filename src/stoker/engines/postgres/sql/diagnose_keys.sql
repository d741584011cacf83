-- Of the first $1 unique keys: how many are held by a job that is finished or gone.
SELECT count(*)
FROM (SELECT id FROM stoker.dedupe ORDER BY slot LIMIT $1) AS k
WHERE
    EXISTS (SELECT 1 FROM stoker.done AS d WHERE d.id = k.id)
    OR NOT EXISTS (SELECT 1 FROM stoker.job AS j WHERE j.id = k.id)
