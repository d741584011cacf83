-- What a sweep has to do with which groups. `old`: it has changes from before $3, or is complete as it was folded.
WITH t AS MATERIALIZED (
    SELECT coalesce($1::bigint, stoker.clock()) AS now
)
(
    SELECT c.id, CASE WHEN min(c.at) < min(t.now) - $3::bigint THEN 'old' ELSE 'changed' END AS what
    FROM stoker.group_change AS c, t GROUP BY c.id LIMIT $2::int
)
UNION ALL (
    SELECT id, 'old' FROM stoker.job_group
    WHERE sealed AND closed IS NULL AND total <= done + dead + canceled LIMIT $2::int
)
UNION ALL (
    SELECT g.id, 'unsealed' FROM stoker.job_group AS g, t
    WHERE NOT g.sealed AND g.touched < t.now - $4::bigint ORDER BY g.touched LIMIT $2::int
)
UNION ALL (
    SELECT g.id, 'expired' FROM stoker.job_group AS g, t
    WHERE g.expires < t.now ORDER BY g.expires LIMIT $2::int
)
