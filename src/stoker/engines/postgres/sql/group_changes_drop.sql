-- Changes of groups that are closed or gone count nothing.
DELETE FROM stoker.group_change AS c
WHERE c.id = ANY($1::uuid[])
    AND NOT EXISTS (SELECT FROM stoker.job_group AS g WHERE g.id = c.id AND g.closed IS NULL)
