-- Extends a lease and shows everything stored under the worker. No row: the worker is unknown.
WITH t AS MATERIALIZED (
    SELECT coalesce($1::bigint, stoker.clock()) AS now, set_config('synchronous_commit', 'off', true) AS lax
), w AS (
    UPDATE stoker.worker AS w SET until = t.now + $3::bigint, lease = $3::bigint FROM t
    WHERE w.name = $2::text RETURNING t.now
)
SELECT w.now, l.id, l.token, l.claimed, l.open::text, l.cancel::text, l.ids
FROM w LEFT JOIN stoker.lease AS l ON l.worker = $2::text
