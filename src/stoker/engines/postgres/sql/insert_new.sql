-- Drafts of which some may be known and some keys held. Keys are asked for in their order, and nobody waits for longer
-- than another insert of the same key takes. Answers the ids that were stored (true), and those whose key was taken
-- for a draft that turned out to be known (false).
WITH x AS MATERIALIZED (
    SELECT
        u.id, u.payload, u.tenant, u.options, u.ukey, u.utraits, u.slot, u.firm,
        coalesce(u.at, $1::bigint + coalesce(u.delay, 0)) AS due,
        coalesce(u.queue, $2::text) AS queue, coalesce(u.kind, $3::text) AS kind,
        coalesce(u.priority, $4::smallint) AS priority, coalesce(u.budget, $5::int) AS budget
    FROM
        unnest(
            $6::uuid[], $7::text[], $8::text[], $9::text[], $10::smallint[], $11::int[], $12::bigint[], $13::bigint[],
            $14::text[], $15::text[], $16::text[], $17::smallint[], $18::text[], $19::boolean[]
        ) AS u (
            id, queue, kind, payload, priority, budget, delay, at, tenant, options, ukey, utraits, slot, firm
        )
    WHERE NOT EXISTS (SELECT 1 FROM stoker.job AS j WHERE j.id = u.id)
), k AS (
    INSERT INTO stoker.dedupe (slot, id, firm)
    SELECT slot, id, firm FROM x WHERE slot IS NOT NULL ORDER BY slot
    ON CONFLICT (slot) DO NOTHING
    RETURNING id
), j AS (
    INSERT INTO stoker.job (
        id, created, due, budget, priority, utraits, queue, kind, payload, ukey, tenant, options
    )
    SELECT id, $1::bigint, due, budget, priority, utraits, queue, kind, payload, ukey, tenant, options
    FROM x WHERE slot IS NULL OR id IN (SELECT k.id FROM k)
    ON CONFLICT (id) DO NOTHING
    RETURNING id, due, priority, queue, kind
), r AS (
    INSERT INTO stoker.ready (due, token, id, attempts, priority, status, settled, past, queue)
    SELECT due, 0, id, 0, priority, 0, -1, false, queue FROM j
), c AS (
    INSERT INTO stoker.delta (queue, kind, pending, enqueued)
    SELECT queue, kind, count(*), count(*) FROM j GROUP BY queue, kind
)
SELECT id, true FROM j
UNION ALL
SELECT k.id, false FROM k WHERE NOT EXISTS (SELECT 1 FROM j WHERE j.id = k.id)
