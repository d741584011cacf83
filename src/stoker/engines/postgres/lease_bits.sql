-- name: held
-- Where claims are stored of which only worker, token and job are known.
SELECT
    u.ord, l.id, l.token, l.claimed, l.worker, l.queue, length(l.open), x.pos::int - 1, j.kind,
    coalesce(l.attempts[x.pos], 1), j.priority, j.ukey, j.utraits, coalesce(p.throttles, 0)
FROM
    unnest($1::text[], $2::bigint[], $3::uuid[]) WITH ORDINALITY AS u (worker, token, id, ord)
JOIN stoker.lease AS l
    ON l.worker = u.worker AND l.worker = ANY($1::text[]) AND l.token = u.token AND l.ids @> ARRAY[u.id],
LATERAL (SELECT array_position(l.ids, u.id) AS pos) AS x
JOIN stoker.job AS j ON true
LEFT JOIN stoker.past AS p ON p.id = j.id
WHERE j.id = u.id AND get_bit(l.open, x.pos::int - 1) = 1
