-- Claims as they are stored, by lease and position, for a worker that does not hold them yet.
SELECT
    l.id, l.token, l.claimed, l.queue, j.id, j.kind, j.payload, coalesce(l.attempts[u.pos + 1], 1), j.budget, j.created,
    coalesce(p.due, j.due), j.priority, j.options, j.ukey, j.utraits, j.tenant,
    CASE WHEN q.name IS NOT NULL
        THEN ARRAY[q.curve_on::int, q.curve_base, q.curve_max, q.cool_count]::bigint[] END,
    CASE WHEN p.id IS NOT NULL THEN json_build_array(p.base, p.crashes, p.throttles, p.metadata)::text END,
    (SELECT f.error FROM stoker.failure AS f WHERE f.id = j.id ORDER BY f.n DESC LIMIT 1),
    u.pos, length(l.open), l.worker, l.former, l.former_at, coalesce(get_bit(l.cancel, u.pos) = 1, false)
FROM unnest($1::bigint[], $2::int[]) WITH ORDINALITY AS u (lease, pos, ord)
JOIN stoker.lease AS l ON l.id = u.lease AND l.id = ANY($1::bigint[])
JOIN stoker.job AS j ON j.id = l.ids[u.pos + 1]
LEFT JOIN stoker.queue AS q ON q.name = l.queue
LEFT JOIN stoker.past AS p ON p.id = j.id
WHERE get_bit(l.open, u.pos) = 1
ORDER BY u.ord
