-- Give a job of a lease a lease row of its own, with the same worker, token and bit: a transaction on an older snapshot
-- can then settle it whatever its siblings do. Nothing happens to a job that is alone, or no longer that worker's. It
-- need not wait for the disk: lost in a crash, it does no harm.
WITH t AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) AS lax
), l AS MATERIALIZED (
    SELECT l.*, set_bit(l.open # l.open, array_position(l.ids, $3::uuid) - 1, 1) AS mask
    FROM stoker.lease AS l, t
    WHERE
        t.lax = 'off' AND l.worker = $1::text AND l.token = $2::bigint AND l.ids @> ARRAY[$3::uuid]
        AND get_bit(l.open, array_position(l.ids, $3::uuid) - 1) = 1 AND bit_count(l.open) > 1
    FOR UPDATE OF l
), n AS (
    INSERT INTO stoker.lease (id, token, claimed, former_at, worker, queue, former, open, cancel, attempts, ids)
    SELECT
        nextval('stoker.lease_number'), l.token, l.claimed, l.former_at, l.worker, l.queue, l.former, l.mask,
        l.cancel & l.mask, l.attempts, l.ids
    FROM l
)
UPDATE stoker.lease AS s SET open = l.open & ~l.mask FROM l WHERE s.id = l.id RETURNING 1
