-- name: settle_done
-- Claims end as nearly all do, with a success and its result: `Record.settle`, each only while its bit is open under
-- exactly its worker and token. Returns, lease by lease, which bits were open; a lease that is not returned is not that
-- worker's under that token. A place is the number of the lease in the call and the position of the bit; lists in which
-- all values are the same are empty.
WITH t AS MATERIALIZED (
    SELECT coalesce($1::bigint, stoker.clock()) AS now
), l AS MATERIALIZED (
    SELECT
        m.ord, s.id, s.token, s.queue, s.claimed, s.open, s.cancel, coalesce(q.keep_done, $12::bigint) AS keep_done,
        m.origin, s.open & m.hard::varbit AS eff
    FROM
        unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[], $14::int[])
            WITH ORDINALITY AS m (lease, worker, token, hard, origin, ord)
    JOIN stoker.lease AS s
        ON s.id = m.lease AND s.id = ANY($2::bigint[]) AND s.worker || '' = m.worker AND s.token = m.token
    LEFT JOIN stoker.queue AS q ON q.name = s.queue
    ORDER BY s.id FOR UPDATE OF s
), x AS (
    UPDATE stoker.lease AS s SET open = l.open & ~l.eff FROM l
    WHERE s.id = l.id AND bit_count(l.eff) > 0 AND bit_count(l.open & ~l.eff) > 0
), y AS (
    DELETE FROM stoker.lease AS s USING l WHERE s.id = l.id AND bit_count(l.open & ~l.eff) = 0
), f AS MATERIALIZED (
    SELECT
        u.id, u.result, coalesce(u.kind, $13::text) AS kind, coalesce(u.attempts, 1) AS attempts,
        l.token, l.queue, l.claimed, l.origin, t.now, t.now + coalesce(u.keep, l.keep_done) AS expires,
        coalesce(get_bit(l.cancel, u.place % 65536) = 1, false) AS cancel
    FROM
        t, l, unnest($6::int[], $7::uuid[], $8::text[], $9::int[], $10::bigint[], $11::text[])
            AS u (place, id, kind, attempts, keep, result)
    WHERE u.place / 65536 = l.ord AND get_bit(l.eff, u.place % 65536) = 1
), i AS (
    INSERT INTO stoker.done (
        id, finished, expires, token, started, attempts, origin, status, settled, cancel, queue, result
    )
    SELECT id, now, expires, token, claimed, attempts, origin, 3, 3, cancel, queue, result FROM f
), c AS (
    INSERT INTO stoker.delta (queue, kind, running, done, completed)
    SELECT queue, kind, -count(*), count(*), count(*) FROM f GROUP BY queue, kind
), tr AS (
    INSERT INTO stoker.trouble (kind)
    SELECT w.kind FROM (SELECT DISTINCT kind FROM f) AS w
    WHERE (SELECT v.error FROM stoker.trouble AS v WHERE v.kind = w.kind ORDER BY v.n DESC LIMIT 1) IS NOT NULL
)
SELECT ord, eff::text FROM l

-- name: settled
-- How the last run of these jobs was ended, and under which token.
SELECT id, token, settled FROM stoker.ready WHERE id = ANY($1::uuid[])
UNION ALL
SELECT id, token, settled FROM stoker.done WHERE id = ANY($1::uuid[])

-- name: lock_claims
-- Lock leases by their numbers; returns their bits.
SELECT id, open::text FROM stoker.lease WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE
