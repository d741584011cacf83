-- The last ?1 groups and their callbacks.
SELECT g.id, j.callbacks
FROM (SELECT id FROM stoker_groups ORDER BY id DESC LIMIT ?1) AS g LEFT JOIN stoker_group_jobs AS j ON j.id = g.id
