-- name: subqueue_pending
SELECT n, name, freed, look, options, anew FROM stoker.subqueue_log WHERE queue = $1 ORDER BY n

-- name: subqueue_append
INSERT INTO stoker.subqueue_log (queue, name, freed, look, options, anew)
SELECT * FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::text[], $6::boolean[])

-- name: subqueue_named
-- Each name is searched for by itself: `= ANY` would be planned as a walk over the queue.
SELECT
    s.name, s.limited, s.number, s.pinned, s.running, s.rate_n, s.rate_per, s.rate_burst, s.tokens, s.refilled,
    s.priority, s.due, s.id, s.next, s.at, s.turn, s.since
FROM unnest($2::text[]) AS u (name)
CROSS JOIN LATERAL (SELECT * FROM stoker.subqueue WHERE queue = $1 AND name = u.name OFFSET 0) AS s

-- name: subqueue_all
SELECT
    name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker.subqueue
WHERE queue = $1

-- name: subqueue_touched
SELECT
    name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker.subqueue
WHERE queue = $1 AND next <= $2
ORDER BY queue, next, name LIMIT $3

-- name: subqueue_by_head
-- Not those that are touched: their head may be gone.
SELECT
    name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker.subqueue
WHERE queue = $1 AND open AND (next IS NULL OR next > $2)
ORDER BY queue, priority, due, id LIMIT $3

-- name: subqueue_by_turn
-- Not those that are touched: their head may be gone.
SELECT
    name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker.subqueue
WHERE queue = $1 AND open AND (next IS NULL OR next > $2)
ORDER BY queue, at, turn, name LIMIT $3

-- name: subqueue_write
-- States as the claim leaves them; those named in $20 are deleted. Rows are found name by name, in the only transaction
-- that may change them now: it has the queue's lock. Lists are texts, as those of `claim`.
WITH d AS (
    DELETE FROM stoker.subqueue WHERE ctid = ANY(ARRAY(
        SELECT s.ctid FROM unnest($20::text[]) AS u (name)
        CROSS JOIN LATERAL (SELECT ctid FROM stoker.subqueue WHERE queue = $1 AND name = u.name OFFSET 0) AS s
    ))
)
INSERT INTO stoker.subqueue (queue, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since, open)
SELECT $1, u.* FROM unnest(
    $2::text[], $3::text[], $4::text::int[], $5::text::int[], $6::text::int[], $7::text::float8[], $8::text::float8[], $9::text::float8[], $10::text::float8[], $11::text::bigint[], $12::text::smallint[], $13::text::bigint[], $14::text::uuid[], $15::text::bigint[], $16::text::bigint[], $17::text::bigint[], $18::text::bigint[], $19::text::boolean[]
) AS u
ON CONFLICT (queue, name) DO UPDATE SET
    limited = excluded.limited,
    number = excluded.number,
    pinned = excluded.pinned,
    running = excluded.running,
    rate_n = excluded.rate_n,
    rate_per = excluded.rate_per,
    rate_burst = excluded.rate_burst,
    tokens = excluded.tokens,
    refilled = excluded.refilled,
    priority = excluded.priority,
    due = excluded.due,
    id = excluded.id,
    next = excluded.next,
    at = excluded.at,
    turn = excluded.turn,
    since = excluded.since,
    open = excluded.open

-- name: subqueue_look
-- What lines hold, priority by priority: up to n + 1 due jobs, and when the first one is due after $3. A line of one job,
-- as many are, is read by one search.
SELECT x.line, v.p, v.dues, v.ids, v.later
FROM
    unnest($1::text[], $2::int[]) AS x (line, n)
    CROSS JOIN LATERAL (
        SELECT count(*) AS n, min(f.priority) AS p, min(f.due) AS due, (array_agg(f.id))[1] AS id
        FROM (
            SELECT f.priority, f.due, f.id FROM stoker.ready AS f WHERE f.queue = x.line
            ORDER BY f.queue, f.priority, f.due, f.id LIMIT 2
        ) AS f
    ) AS few
    CROSS JOIN LATERAL (
        SELECT
            few.p, CASE WHEN few.due <= $3::bigint THEN ARRAY[few.due] END AS dues,
            CASE WHEN few.due <= $3::bigint THEN ARRAY[few.id] END AS ids,
            CASE WHEN few.due > $3::bigint THEN few.due END AS later
        WHERE few.n = 1
        UNION ALL
        SELECT v.p, a.dues, a.ids, b.due
        FROM
            (
                WITH RECURSIVE level (p) AS (
                    SELECT few.p WHERE few.n = 2
                    UNION ALL
                    SELECT (
                        SELECT f.priority FROM stoker.ready AS f WHERE f.queue = x.line AND f.priority > level.p
                        ORDER BY f.queue, f.priority LIMIT 1
                    ) FROM level WHERE level.p IS NOT NULL
                )
                SELECT level.p FROM level WHERE level.p IS NOT NULL
            ) AS v
            CROSS JOIN LATERAL (
                SELECT array_agg(f.due) AS dues, array_agg(f.id) AS ids
                FROM (
                    SELECT f.due, f.id FROM stoker.ready AS f
                    WHERE f.queue = x.line AND f.priority = v.p AND f.due <= $3::bigint
                    ORDER BY f.queue, f.priority, f.due, f.id LIMIT x.n + 1
                ) AS f
            ) AS a
            LEFT JOIN LATERAL (
                SELECT f.due FROM stoker.ready AS f WHERE f.queue = x.line AND f.priority = v.p AND f.due > $3::bigint
                ORDER BY f.queue, f.priority, f.due LIMIT 1
            ) AS b ON true
    ) AS v

-- name: subqueue_first
-- The first due jobs of lines, at most so many of each priority. Rows that another transaction has locked are skipped.
SELECT x.line, f.priority, f.due, f.id
FROM
    unnest($1::text[], $2::int[]) AS x (line, n)
    CROSS JOIN LATERAL (
        WITH RECURSIVE level (p) AS (
            (
                SELECT f.priority FROM stoker.ready AS f WHERE f.queue = x.line
                ORDER BY f.queue, f.priority LIMIT 1
            )
            UNION ALL
            SELECT (
                SELECT f.priority FROM stoker.ready AS f WHERE f.queue = x.line AND f.priority > level.p
                ORDER BY f.queue, f.priority LIMIT 1
            ) FROM level WHERE level.p IS NOT NULL
        )
        SELECT level.p FROM level WHERE level.p IS NOT NULL
    ) AS v
    CROSS JOIN LATERAL (
        SELECT f.priority, f.due, f.id FROM stoker.ready AS f
        WHERE f.queue = x.line AND f.priority = v.p AND f.due <= $3::bigint
        ORDER BY f.queue, f.priority, f.due, f.id LIMIT x.n FOR UPDATE SKIP LOCKED
    ) AS f

-- name: subqueue_holders
-- The jobs that hold slots of a queue's subqueues: those that run, and those that wait with the slot they kept.
SELECT j.id, j.options
FROM stoker.lease AS l
CROSS JOIN LATERAL unnest(l.ids) WITH ORDINALITY AS u (id, pos)
JOIN stoker.job AS j ON j.id = u.id
WHERE l.queue = $1 AND get_bit(l.open, u.pos::int - 1) = 1 AND j.options IS NOT NULL
UNION ALL
SELECT j.id, j.options
FROM stoker.ready AS r
JOIN stoker.job AS j ON j.id = r.id
WHERE r.queue = $1 AND r.past AND r.settled IN (0, 2, 8, 9) AND j.options IS NOT NULL

-- name: subqueue_waiting
-- How many jobs of each line are due, in the order of the lines.
SELECT (SELECT count(*) FROM stoker.ready AS r WHERE r.queue = x.line AND r.due <= $2::bigint)
FROM unnest($1::text[]) WITH ORDINALITY AS x (line, n)
ORDER BY x.n

-- name: subqueue_full_queues
-- Queues of which a subqueue has been full since $1 or before.
SELECT DISTINCT queue FROM stoker.subqueue WHERE since <= $1::bigint ORDER BY queue

-- name: subqueue_full
-- Subqueues of a queue that have been full since $2 or before, with the slots that the log gives back; and the options of
-- all jobs that hold slots, as in `subqueue_holders`. One snapshot: an end removes its claim and appends to the log at once.
SELECT s.name, s.running, coalesce(sum(l.freed), 0)::int, NULL::text
FROM stoker.subqueue AS s
LEFT JOIN stoker.subqueue_log AS l ON l.queue = s.queue AND l.name = s.name
WHERE s.queue = $1 AND s.since <= $2::bigint
GROUP BY s.name, s.running
UNION ALL
SELECT NULL, NULL, NULL, j.options
FROM stoker.lease AS l
CROSS JOIN LATERAL unnest(l.ids) WITH ORDINALITY AS u (id, pos)
JOIN stoker.job AS j ON j.id = u.id
WHERE l.queue = $1 AND get_bit(l.open, u.pos::int - 1) = 1 AND j.options IS NOT NULL
UNION ALL
SELECT NULL, NULL, NULL, j.options
FROM stoker.ready AS r
JOIN stoker.job AS j ON j.id = r.id
WHERE r.queue = $1 AND r.past AND r.settled IN (0, 2, 8, 9) AND j.options IS NOT NULL
