-- Of the first and the last $1 jobs those that neither wait nor run nor are finished.
WITH candidate AS MATERIALIZED (
    (SELECT id FROM stoker.job ORDER BY id LIMIT $1)
    UNION
    (SELECT id FROM stoker.job ORDER BY id DESC LIMIT $1)
), rest AS MATERIALIZED (
    SELECT s.id
    FROM candidate AS s
    WHERE
        NOT EXISTS (SELECT 1 FROM stoker.ready AS r WHERE r.id = s.id)
        AND NOT EXISTS (SELECT 1 FROM stoker.done AS d WHERE d.id = s.id)
)
SELECT id FROM rest
EXCEPT
SELECT u.id
FROM stoker.lease AS l CROSS JOIN unnest(l.ids) WITH ORDINALITY AS u (id, pos)
WHERE get_bit(l.open, u.pos::int - 1) = 1
LIMIT 20
