-- name: lease_bodiless
-- Claims of jobs whose body is gone: lease, bit, number of bits.
SELECT u.id, l.id, u.pos::int - 1, length(l.open)
FROM stoker.lease AS l CROSS JOIN unnest(l.ids) WITH ORDINALITY AS u (id, pos)
WHERE
    get_bit(l.open, u.pos::int - 1) = 1
    AND NOT EXISTS (SELECT 1 FROM stoker.job AS j WHERE j.id = u.id)

-- name: counts_adrift
-- Counters of waiting and running jobs in queues in which none waits or runs: queue, kind, pending, running, retrying.
-- One snapshot: a transaction changes jobs and counters together, so a difference is damage.
WITH n AS MATERIALIZED (
    SELECT queue, kind, sum(pending)::bigint AS pending, sum(running)::bigint AS running, sum(retrying)::bigint AS retrying
    FROM (
        SELECT queue, kind, pending, running, retrying FROM stoker.tally
        UNION ALL
        SELECT queue, kind, coalesce(pending, 0), coalesce(running, 0), coalesce(retrying, 0) FROM stoker.delta
    ) AS x
    GROUP BY queue, kind
    HAVING sum(pending) <> 0 OR sum(running) <> 0 OR sum(retrying) <> 0
), e AS MATERIALIZED (
    SELECT
        q.queue, w.queue IS NULL AND s.queue IS NULL AS still,
        NOT EXISTS (SELECT 1 FROM stoker.lease AS l WHERE l.queue = q.queue) AS idle
    FROM (SELECT DISTINCT queue FROM n) AS q
    LEFT JOIN LATERAL (
        SELECT r.queue FROM stoker.ready AS r WHERE r.queue = q.queue ORDER BY r.queue, r.priority LIMIT 1
    ) AS w ON true
    LEFT JOIN LATERAL (
        SELECT r.queue FROM stoker.ready AS r
        WHERE r.queue > q.queue || '/' AND r.queue < q.queue || '0' ORDER BY r.queue, r.priority LIMIT 1
    ) AS s ON true
)
SELECT
    n.queue, n.kind, CASE WHEN e.still THEN n.pending ELSE 0 END, CASE WHEN e.idle THEN n.running ELSE 0 END,
    CASE WHEN e.still THEN n.retrying ELSE 0 END
FROM n JOIN e ON e.queue = n.queue
WHERE (e.still AND (n.pending <> 0 OR n.retrying <> 0)) OR (e.idle AND n.running <> 0)
