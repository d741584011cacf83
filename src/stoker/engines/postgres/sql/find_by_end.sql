-- Places of unsuccessful jobs of these statuses ($4) behind one ($1, $2), latest end first, at most $3.
SELECT x.finished, x.id
FROM unnest($4::smallint[]) AS s (status)
CROSS JOIN LATERAL (
    SELECT d.finished, d.id FROM stoker.done AS d
    WHERE d.status = s.status AND d.status <> 3 AND (d.finished, d.id) < ($1::bigint, $2::uuid)
    ORDER BY d.status DESC, d.finished DESC, d.id DESC LIMIT $3
) AS x
ORDER BY x.finished DESC, x.id DESC LIMIT $3
