-- Groups, and what became of their members since they were folded.
SELECT
    g.id, g.created, g.touched, g.closed, g.expires, g.total, g.done, g.dead, g.canceled, g.sealed, g.abandoned,
    g.queue, g.callbacks, g.members, c.total, c.done, c.dead, c.canceled, c.queue, c.members, c.at
FROM stoker.job_group AS g
LEFT JOIN stoker.group_change AS c ON c.id = g.id AND g.closed IS NULL
WHERE g.id = ANY($1::uuid[])
ORDER BY c.n
