-- Fresh drafts without keys. One whose id is stored already makes the whole statement fail; then insert_new is asked.
-- What all drafts have in common comes once ($2 to $5) and its list is empty.
WITH t AS MATERIALIZED (
    SELECT coalesce($1::bigint, stoker.clock()) AS now
), x AS MATERIALIZED (
    SELECT
        u.id, u.payload, u.tenant, u.options, t.now, coalesce(u.at, t.now + coalesce(u.delay, 0)) AS due,
        coalesce(u.queue, $2::text) AS queue, coalesce(u.kind, $3::text) AS kind,
        coalesce(u.priority, $4::smallint) AS priority, coalesce(u.budget, $5::int) AS budget
    FROM
        t,
        unnest(
            $6::uuid[], $7::text[], $8::text[], $9::text[], $10::smallint[], $11::int[], $12::bigint[], $13::bigint[],
            $14::text[], $15::text[]
        ) AS u (id, queue, kind, payload, priority, budget, delay, at, tenant, options)
), r AS (
    INSERT INTO stoker.ready (due, token, id, attempts, priority, status, settled, past, queue)
    SELECT due, 0, id, 0, priority, 0, -1, false, queue FROM x
), c AS (
    INSERT INTO stoker.delta (queue, kind, pending, enqueued)
    SELECT queue, kind, count(*), count(*) FROM x GROUP BY queue, kind
), j AS (
    INSERT INTO stoker.job (id, created, due, budget, priority, queue, kind, payload, tenant, options)
    SELECT id, now, due, budget, priority, queue, kind, payload, tenant, options FROM x
)
SELECT now FROM t
