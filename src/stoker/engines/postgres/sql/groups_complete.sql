-- Which of these groups seem to be complete (Group.complete); the transaction that closes them looks again.
SELECT g.id
FROM stoker.job_group AS g
LEFT JOIN LATERAL (
    SELECT sum(c.total - c.done - c.dead - c.canceled) AS waiting FROM stoker.group_change AS c WHERE c.id = g.id
) AS c ON true
WHERE
    g.id = ANY($1::uuid[]) AND g.sealed AND g.closed IS NULL
    AND g.total - g.done - g.dead - g.canceled + coalesce(c.waiting, 0) <= 0
