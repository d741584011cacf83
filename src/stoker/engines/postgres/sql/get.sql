-- Whole records, wherever they are. Leases are looked into only when some job neither waits nor is finished.
WITH j AS MATERIALIZED (
    SELECT * FROM stoker.job WHERE id = ANY($1::uuid[])
), d AS MATERIALIZED (
    SELECT * FROM stoker.done WHERE id = ANY($1::uuid[])
), r AS MATERIALIZED (
    SELECT * FROM stoker.ready WHERE id = ANY($1::uuid[])
), l AS MATERIALIZED (
    SELECT
        u.id, l.token, l.worker, l.claimed, coalesce(l.attempts[u.pos], 1) AS attempts,
        coalesce(get_bit(l.cancel, u.pos::int - 1), 0) = 1 AS cancel
    FROM stoker.lease AS l, unnest(l.ids) WITH ORDINALITY AS u (id, pos)
    WHERE
        (SELECT count(*) FROM j) > (SELECT count(*) FROM d) + (SELECT count(*) FROM r)
        AND (cardinality($1::uuid[]) > 20 OR l.ids && $1::uuid[])
        AND (u.id IN (SELECT unnest($1::uuid[]))) IS TRUE
        AND get_bit(l.open, u.pos::int - 1) = 1
)
SELECT
    j.id, j.kind, j.queue, j.payload, j.priority, j.budget, j.created, j.ukey, j.utraits, j.tenant, j.options,
    coalesce(r.status, d.status, CASE WHEN l.id IS NOT NULL THEN 1 END) AS status,
    coalesce(r.token, d.token, l.token) AS token,
    coalesce(r.attempts, d.attempts, l.attempts) AS attempts,
    coalesce(r.due, p.due, j.due) AS due,
    coalesce(l.claimed, d.started, p.started) AS started,
    d.finished, d.expires, coalesce(l.cancel, d.cancel, false) AS cancel, d.result, d.successor, l.worker,
    coalesce(p.base, 0) AS base, coalesce(p.crashes, 0) AS crashes, coalesce(p.throttles, 0) AS throttles,
    p.progress, p.metadata::text AS metadata, p.log::text AS log,
    coalesce(r.settled, d.settled, -1) AS settled,
    CASE WHEN coalesce(l.cancel, d.cancel, false) THEN p.asked END AS asked,
    (SELECT f.error FROM stoker.failure AS f WHERE f.id = j.id ORDER BY f.n DESC LIMIT 1) AS last_error,
    (
        SELECT json_agg(json_build_array(f.at, f.attempt, f.error) ORDER BY f.n)::text
        FROM stoker.failure AS f WHERE f.id = j.id AND f.attempt IS NOT NULL
    ) AS history
FROM j
LEFT JOIN r ON r.id = j.id
LEFT JOIN d ON d.id = j.id
LEFT JOIN l ON l.id = j.id
LEFT JOIN LATERAL (SELECT * FROM stoker.past WHERE id = j.id OFFSET 0) AS p ON true
