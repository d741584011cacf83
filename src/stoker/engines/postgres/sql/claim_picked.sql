-- Jobs that a claim of a divided queue picked ($4) become claims, as by `claim`; their rows are locked.
WITH t AS MATERIALIZED (
    SELECT $1::bigint AS now
), d AS (
    DELETE FROM stoker.ready WHERE id = ANY($4::uuid[])
    RETURNING
        id, $3::text AS queue, priority, due, attempts, status, past,
        greatest((SELECT now FROM t), token + 1) AS fence
), p AS MATERIALIZED (
    SELECT
        d.*, j.kind, j.payload, j.budget, j.created, j.options, j.ukey, j.utraits, j.tenant,
        row_number() OVER (PARTITION BY d.queue, d.fence ORDER BY d.priority, d.due, d.id) AS pos
    FROM d, LATERAL (SELECT * FROM stoker.job WHERE id = d.id OFFSET 0) AS j
), l AS (
    INSERT INTO stoker.lease (id, token, claimed, worker, queue, open, attempts, ids)
    SELECT
        nextval('stoker.lease_number'), p.fence, (SELECT now FROM t), $2::text, p.queue,
        repeat('1', count(*)::int)::varbit,
        CASE WHEN max(p.attempts) > 0 THEN array_agg(p.attempts + 1 ORDER BY p.pos) END,
        array_agg(p.id ORDER BY p.pos)
    FROM p GROUP BY p.queue, p.fence
    RETURNING id, token, claimed, queue
), c AS (
    INSERT INTO stoker.delta (queue, kind, pending, running, retrying)
    SELECT
        queue, kind, nullif(-count(*) FILTER (WHERE status = 0), 0), count(*),
        nullif(-count(*) FILTER (WHERE status = 2), 0)
    FROM p GROUP BY queue, kind
)
(
    SELECT
        CASE WHEN p.pos = 1 THEN l.id END, CASE WHEN p.pos = 1 THEN l.token END, CASE WHEN p.pos = 1 THEN l.claimed END,
        CASE WHEN p.pos = 1 THEN p.queue END,
        CASE WHEN p.pos = 1 AND g.curve_on IS NOT NULL
            THEN ARRAY[g.curve_on::int, g.curve_base, g.curve_max, g.cool_count]::bigint[] END,
        p.id, p.kind, p.payload, p.attempts + 1, p.budget, p.created, p.due, p.priority,
        p.options, p.ukey, p.utraits, p.tenant,
        CASE WHEN p.past THEN (
            SELECT json_build_array(o.base, o.crashes, o.throttles, o.metadata)::text FROM stoker.past AS o WHERE o.id = p.id
        ) END,
        CASE WHEN p.past THEN (
            SELECT f.error FROM stoker.failure AS f WHERE f.id = p.id ORDER BY f.n DESC LIMIT 1
        ) END,
        p.status
    FROM p JOIN l ON l.queue = p.queue AND l.token = p.fence LEFT JOIN stoker.queue AS g ON g.name = p.queue
    ORDER BY p.fence, p.pos
)
