-- name: whereabouts
-- Where a user's handle is, whether our tables are there, and how late it is.
SELECT
    current_database()::text, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
    to_regclass('stoker.stoker_migration') IS NOT NULL, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint

-- name: hold
-- Where a claim is stored while it is still its worker's under its token, and the clock; its lease is known, or $4 and $5
-- admit all. A job that shares its lease row with others gets one of its own first: a transaction that settles it then
-- neither waits for its siblings nor fails because of them, on whatever snapshot it is. That need not wait for the disk:
-- lost in a crash, it does no harm.
WITH t AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) AS lax
), l AS MATERIALIZED (
    SELECT l.*, array_position(l.ids, $3::uuid) AS pos, bit_count(l.open) > 1 AS shared
    FROM stoker.lease AS l, t
    WHERE
        t.lax = 'off' AND l.worker = $1::text AND l.id BETWEEN $4::bigint AND $5::bigint AND l.token = $2::bigint
        AND l.ids @> ARRAY[$3::uuid] AND get_bit(l.open, array_position(l.ids, $3::uuid) - 1) = 1
    FOR UPDATE OF l
), n AS (
    INSERT INTO stoker.lease (id, token, claimed, former_at, worker, queue, former, open, cancel, attempts, ids)
    SELECT
        nextval('stoker.lease_number'), l.token, l.claimed, l.former_at, l.worker, l.queue, l.former, B'1',
        CASE WHEN get_bit(l.cancel, l.pos - 1) = 1 THEN B'1' END, l.attempts[l.pos:l.pos], ARRAY[$3::uuid]
    FROM l WHERE l.shared
    RETURNING id
), u AS (
    UPDATE stoker.lease AS s SET open = set_bit(l.open, l.pos - 1, 0) FROM l WHERE s.id = l.id AND l.shared
)
SELECT
    coalesce(n.id, l.id), l.claimed, l.queue, CASE WHEN l.shared THEN 1 ELSE length(l.open) END,
    CASE WHEN l.shared THEN 0 ELSE l.pos - 1 END, stoker.clock()
FROM l LEFT JOIN n ON true
