-- Those of the jobs that have ended or are gone.
SELECT x.id
FROM unnest($1::uuid[]) AS x (id)
WHERE
    EXISTS (SELECT 1 FROM stoker.done AS d WHERE d.id = x.id)
    OR NOT EXISTS (SELECT 1 FROM stoker.job AS j WHERE j.id = x.id)
