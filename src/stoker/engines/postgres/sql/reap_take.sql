-- The claims at these positions pass to another worker under a new token, in leases of their own: `Record.reaped`.
WITH u AS MATERIALIZED (
    SELECT lease, mask::varbit AS mask FROM unnest($3::bigint[], $4::text[]) AS u (lease, mask)
), n AS (
    INSERT INTO stoker.lease (id, token, claimed, former_at, worker, queue, former, open, cancel, attempts, ids)
    SELECT
        nextval('stoker.lease_number'), greatest($1::bigint, l.token + 1), $1::bigint, l.claimed, $2::text, l.queue,
        l.worker, u.mask, l.cancel, l.attempts, l.ids
    FROM u JOIN stoker.lease AS l ON l.id = u.lease AND l.id = ANY($3::bigint[])
    RETURNING id, open, ids
), x AS (
    UPDATE stoker.lease AS l SET open = l.open & ~u.mask FROM u
    WHERE l.id = u.lease AND l.id = ANY($3::bigint[]) AND bit_count(l.open & ~u.mask) > 0
), y AS (
    DELETE FROM stoker.lease AS l USING u WHERE l.id = u.lease AND l.id = ANY($3::bigint[]) AND bit_count(l.open & ~u.mask) = 0
)
SELECT id, open::text, ids FROM n
