-- name: claim
-- Due jobs of several queues, claimed as `Record.claimed` does. $6 to $9 name the ranges to scan in each queue of $3, in
-- the order of the queue: from which to which priority, and there from which to before which instant; of a range of
-- priorities only those are scanned that a job has. Each queue has a list of its own ranges, so that none is searched for
-- among those of a thousand other queues.
-- A queue with a rate or with subqueues is not claimed from here: as long as one is among those of $3, nothing is claimed,
-- and the names of those queues are returned (claim.py claims from them under a lock, by `claim_rated` or `claim_picked`).
-- Returns claims in the order of the demand, and writes one lease per queue and token: the clock's, unless it stood still
-- since a job's last claim. A job of a kind in $10 gets a lease of its own. Rows that another transaction has locked are
-- skipped; nothing is locked that is not claimed. The last columns are the status before, -1 for a job that no worker had,
-- and the rows of a suspended one (`steps.brought`).
-- Lists of numbers are texts: the driver checks the type of each element of a list three times.
WITH t AS MATERIALIZED (
    SELECT coalesce($1::bigint, stoker.clock()) AS now, set_config('synchronous_commit', 'off', true) AS lax
), g AS MATERIALIZED (
    SELECT
        x.queue, x.n, x.ord, x.low, x.high, x.since, x.until, q.curve_on, q.curve_base, q.curve_max, q.cool_count,
        q.rate_n IS NOT NULL AS rated,
        EXISTS (SELECT 1 FROM stoker.subqueue AS s WHERE s.queue = x.queue)
        OR EXISTS (SELECT 1 FROM stoker.subqueue_log AS s WHERE s.queue = x.queue) AS divided
    FROM
        t,
        unnest($3::text[], $4::text::int[], $6::text[], $7::text[], $8::text[], $9::text[])
            WITH ORDINALITY AS x (queue, n, low, high, since, until, ord)
    LEFT JOIN stoker.queue AS q ON q.name = x.queue
    WHERE
        (q.paused IS NOT TRUE OR q.paused_until <= t.now)
        AND (q.cool_until IS NULL OR q.cool_until <= t.now)
        AND EXISTS (SELECT 1 FROM stoker.worker AS w WHERE w.name = $2::text AND w.until >= t.now)
), d AS (
    DELETE FROM stoker.ready WHERE ctid = ANY(ARRAY(
        SELECT c.place FROM g, LATERAL (
            SELECT r.ctid AS place FROM
                unnest(g.low::smallint[], g.high::smallint[], g.since::bigint[], g.until::bigint[])
                    AS w (low, high, since, until),
                LATERAL (
                    SELECT w.low AS p WHERE w.low = w.high
                    UNION ALL
                    SELECT v.p FROM (
                        WITH RECURSIVE level (p) AS (
                            (
                                SELECT f.priority FROM stoker.ready AS f
                                WHERE f.queue = g.queue AND f.priority >= w.low AND f.priority <= w.high
                                ORDER BY f.queue, f.priority LIMIT 1
                            )
                            UNION ALL
                            SELECT (
                                SELECT f.priority FROM stoker.ready AS f
                                WHERE f.queue = g.queue AND f.priority > level.p AND f.priority <= w.high
                                ORDER BY f.queue, f.priority LIMIT 1
                            ) FROM level WHERE level.p IS NOT NULL
                        )
                        SELECT level.p FROM level WHERE level.p IS NOT NULL
                    ) AS v WHERE w.low < w.high
                ) AS o,
                LATERAL (
                    SELECT f.ctid FROM stoker.ready AS f
                    WHERE f.queue = g.queue AND f.priority = o.p
                        AND f.due >= w.since AND f.due < w.until AND f.due <= (SELECT now FROM t)
                    ORDER BY f.due, f.id LIMIT g.n FOR UPDATE SKIP LOCKED
                ) AS r
            LIMIT g.n
        ) AS c WHERE NOT EXISTS (SELECT 1 FROM g AS o WHERE o.rated OR o.divided) LIMIT $5::int
    )) RETURNING id, queue, priority, due, attempts, status, past, settled,
        greatest((SELECT now FROM t), token + 1) AS fence, token = 0 AS fresh
), p AS MATERIALIZED (
    SELECT
        d.*, j.kind, j.payload, j.budget, j.created, j.options, j.ukey, j.utraits, j.tenant,
        a.alone, row_number() OVER w AS pos, CASE WHEN row_number() OVER w = 1 THEN nextval('stoker.lease_number') END AS lease
    FROM
        d, LATERAL (SELECT * FROM stoker.job WHERE id = d.id OFFSET 0) AS j,
        LATERAL (SELECT CASE WHEN j.kind = ANY($10::text[]) THEN d.id END AS alone) AS a
    WINDOW w AS (PARTITION BY d.queue, d.fence, a.alone ORDER BY d.priority, d.due, d.id)
), l AS (
    INSERT INTO stoker.lease (id, token, claimed, worker, queue, open, attempts, ids)
    SELECT
        max(p.lease), p.fence, (SELECT now FROM t), $2::text, p.queue,
        repeat('1', count(*)::int)::varbit,
        CASE WHEN max(p.attempts) > 0 THEN array_agg(p.attempts + 1 ORDER BY p.pos) END,
        array_agg(p.id ORDER BY p.pos)
    FROM p GROUP BY p.queue, p.fence, p.alone
), c AS (
    INSERT INTO stoker.delta (queue, kind, pending, running, retrying)
    SELECT
        queue, kind, nullif(-count(*) FILTER (WHERE status = 0), 0), count(*),
        nullif(-count(*) FILTER (WHERE status = 2), 0)
    FROM p GROUP BY queue, kind
)
(
    SELECT
        p.lease, CASE WHEN p.pos = 1 THEN p.fence END, CASE WHEN p.pos = 1 THEN t.now END,
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
        CASE WHEN p.fresh THEN -1 ELSE p.status END,
        CASE WHEN p.settled IN (8, 9) THEN (
            SELECT json_agg(json_build_array(s.name, s.state, s.until, s.token, s.at, s.value))::text
            FROM stoker.step AS s
            WHERE s.id = p.id AND s.name > '"' AND (
                SELECT count(*) <= 50 AND coalesce(sum(o.size), 0) <= 65536
                FROM (
                    SELECT octet_length(value) AS size FROM stoker.step WHERE id = p.id AND name > '"' LIMIT 51
                ) AS o
            )
        ) END
    FROM t CROSS JOIN p JOIN g ON g.queue = p.queue
    ORDER BY g.ord, p.fence, p.alone, p.pos
)
UNION ALL
SELECT
    NULL, CASE WHEN g.divided THEN 1 END, NULL, g.queue, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM g WHERE g.rated OR g.divided

-- name: queue_tokens
UPDATE stoker.queue SET tokens = $2, refilled = $3 WHERE name = $1

-- name: subqueue_news
-- What a claim of a divided queue begins with, in one row: the clock; whether the queue has subqueues, or will have them
-- with this claim; whether the worker $2 lives; how many claims subqueues served; the queue's settings, nulls where there
-- are none; then as JSON the oldest $4 rows of the log, which are deleted, and states: those that the log is about and
-- the first $5 of those that are touched. The transaction has the queue's lock.
WITH t AS MATERIALIZED (
    SELECT coalesce($3::bigint, stoker.clock()) AS now
), p AS (
    DELETE FROM stoker.subqueue_log
    WHERE queue = $1 AND n IN (
        SELECT l.n FROM stoker.subqueue_log AS l WHERE l.queue = $1 ORDER BY l.queue, l.n LIMIT $4 FOR UPDATE SKIP LOCKED
    )
    RETURNING n, name, freed, look, options, anew
), s AS (
    SELECT s.* FROM (SELECT DISTINCT name FROM p) AS u
    CROSS JOIN LATERAL (SELECT * FROM stoker.subqueue WHERE queue = $1 AND name = u.name OFFSET 0) AS s
    UNION
    (
        SELECT s.* FROM t CROSS JOIN LATERAL (
            SELECT * FROM stoker.subqueue WHERE queue = $1 AND next <= t.now ORDER BY queue, next, name LIMIT $5
        ) AS s
    )
)
SELECT
    t.now,
    EXISTS (SELECT 1 FROM stoker.subqueue AS s WHERE s.queue = $1)
    OR EXISTS (SELECT 1 FROM stoker.subqueue_log AS l WHERE l.queue = $1),
    EXISTS (SELECT 1 FROM stoker.worker AS w WHERE w.name = $2 AND w.until >= t.now),
    coalesce((SELECT r.claims FROM stoker.subqueue_round AS r WHERE r.queue = $1), 0),
    q.name, q.paused, q.paused_until, q.paused_reason, q.paused_by, q.workers, q.rate_n, q.rate_per, q.rate_burst,
    q.tokens, q.refilled, q.keep_done, q.keep_dead, q.curve_on, q.curve_base, q.curve_max, q.cool_until,
    q.cool_count, q.declared, q.fair, q.limits,
    (SELECT json_agg(json_build_array(p.n, p.name, p.freed, p.look, p.options, p.anew)) FROM p)::text,
    (
        SELECT json_agg(json_build_array(
            s.name, s.limited, s.number, s.pinned, s.running, s.rate_n, s.rate_per, s.rate_burst, s.tokens, s.refilled,
            s.priority, s.due, s.id, s.next, s.at, s.turn, s.since
        )) FROM s
    )::text
FROM t LEFT JOIN stoker.queue AS q ON q.name = $1
