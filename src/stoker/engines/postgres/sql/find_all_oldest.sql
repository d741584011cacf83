-- All jobs behind $1, $2 of them; what `matches` asks about, payload and error only with $3.
WITH i AS MATERIALIZED (
    SELECT id FROM stoker.job WHERE id > $1 ORDER BY id LIMIT $2
)
SELECT
    j.id, coalesce(r.status, d.status, 1) AS status, j.queue, j.kind, j.tenant, j.ukey, j.utraits, j.created,
    coalesce(r.due, p.due, j.due) AS due,
    CASE WHEN $3 THEN j.payload END AS payload,
    CASE
        WHEN $3 THEN (SELECT f.error FROM stoker.failure AS f WHERE f.id = j.id ORDER BY f.n DESC LIMIT 1)
    END AS last_error
FROM i
CROSS JOIN LATERAL (SELECT * FROM stoker.job WHERE id = i.id OFFSET 0) AS j
LEFT JOIN LATERAL (SELECT status, due FROM stoker.ready WHERE id = i.id OFFSET 0) AS r ON true
LEFT JOIN LATERAL (SELECT status FROM stoker.done WHERE id = i.id OFFSET 0) AS d ON true
LEFT JOIN LATERAL (SELECT due FROM stoker.past WHERE id = i.id OFFSET 0) AS p ON true
ORDER BY i.id
