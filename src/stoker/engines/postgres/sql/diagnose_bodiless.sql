-- Of the first $1 waiting jobs, and of running ones, those whose body is gone.
SELECT x.id
FROM (
    (SELECT r.id FROM stoker.ready AS r LIMIT $1)
    UNION ALL
    (
        SELECT u.id
        FROM stoker.lease AS l CROSS JOIN unnest(l.ids) WITH ORDINALITY AS u (id, pos)
        WHERE get_bit(l.open, u.pos::int - 1) = 1
        LIMIT $1
    )
) AS x
WHERE NOT EXISTS (SELECT 1 FROM stoker.job AS j WHERE j.id = x.id)
LIMIT 20
