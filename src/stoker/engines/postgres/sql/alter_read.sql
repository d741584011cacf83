-- What a move needs to know of jobs that are locked. Whatever neither waits nor is finished runs.
WITH j AS MATERIALIZED (
    SELECT id, kind, queue, priority, due, ukey, utraits FROM stoker.job WHERE id = ANY($1::uuid[])
), l AS MATERIALIZED (
    SELECT
        u.id, l.token, l.claimed, coalesce(l.attempts[u.pos], 1) AS attempts,
        coalesce(get_bit(l.cancel, u.pos::int - 1), 0) = 1 AS cancel
    FROM stoker.lease AS l CROSS JOIN unnest(l.ids) WITH ORDINALITY AS u (id, pos)
    WHERE
        l.id = ANY($2::bigint[])
        AND (u.id IN (SELECT unnest($1::uuid[]))) IS TRUE
        AND get_bit(l.open, u.pos::int - 1) = 1
)
SELECT
    j.id, j.kind, j.queue, j.priority, j.ukey, j.utraits,
    coalesce(r.status, d.status, 1) AS status,
    coalesce(r.token, d.token, l.token) AS token,
    coalesce(r.attempts, d.attempts, l.attempts) AS attempts,
    coalesce(r.due, p.due, j.due) AS due,
    coalesce(l.claimed, d.started, p.started) AS started,
    coalesce(l.cancel, d.cancel, false) AS cancel,
    coalesce(r.settled, d.settled, -1) AS settled
FROM j
LEFT JOIN LATERAL (SELECT * FROM stoker.ready WHERE id = j.id OFFSET 0) AS r ON true
LEFT JOIN LATERAL (SELECT * FROM stoker.done WHERE id = j.id OFFSET 0) AS d ON true
LEFT JOIN LATERAL (SELECT due, started FROM stoker.past WHERE id = j.id OFFSET 0) AS p ON true
LEFT JOIN l ON l.id = j.id
