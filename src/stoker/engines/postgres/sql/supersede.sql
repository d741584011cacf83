-- Weak holders end dead and their keys pass on. A holder that was claimed meanwhile is not touched, and not answered.
WITH u AS MATERIALIZED (
    SELECT * FROM unnest($2::uuid[], $3::text[], $4::uuid[], $5::boolean[]) AS u (old, slot, new, firm)
), g AS (
    DELETE FROM stoker.ready AS r USING u WHERE r.id = u.old AND r.id = ANY($2::uuid[]) AND r.status = 2
    RETURNING r.id, r.token, r.attempts, r.settled, r.queue
), k AS (
    UPDATE stoker.dedupe AS d SET id = u.new, firm = u.firm
    FROM u, g WHERE g.id = u.old AND d.slot = u.slot AND d.id = u.old
    RETURNING d.slot
), i AS (
    INSERT INTO stoker.done (id, finished, expires, token, started, attempts, status, settled, cancel, queue)
    SELECT
        g.id, $1::bigint, $1::bigint + coalesce(q.keep_dead, $7::bigint), g.token, p.started, g.attempts, 4,
        g.settled, false, g.queue
    FROM g LEFT JOIN stoker.queue AS q ON q.name = g.queue LEFT JOIN stoker.past AS p ON p.id = g.id
), e AS (
    INSERT INTO stoker.failure (id, at, error) SELECT g.id, $1::bigint, $6::text FROM g
), c AS (
    INSERT INTO stoker.delta (queue, kind, retrying, dead)
    SELECT g.queue, j.kind, -count(*), count(*) FROM g, stoker.job AS j WHERE j.id = g.id GROUP BY g.queue, j.kind
)
SELECT slot FROM k
