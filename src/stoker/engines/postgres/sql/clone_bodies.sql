-- Copies under new ids. A new id that is stored already is not answered.
INSERT INTO stoker.job (id, created, due, budget, priority, utraits, queue, kind, payload, ukey, tenant, options)
SELECT
    u.new, $1::bigint, $1::bigint, j.budget, j.priority, j.utraits, j.queue, j.kind, j.payload, j.ukey, j.tenant,
    j.options
FROM unnest($2::uuid[], $3::uuid[]) AS u (old, new), stoker.job AS j
WHERE j.id = u.old
ON CONFLICT (id) DO NOTHING
RETURNING id
