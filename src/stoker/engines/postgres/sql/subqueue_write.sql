-- States as the claim leaves them; those named in $20 are deleted. Rows are found name by name, in the only transaction
-- that may change them now: it has the queue's lock.
WITH d AS (
    DELETE FROM stoker.subqueue WHERE ctid = ANY(ARRAY(
        SELECT s.ctid FROM unnest($20::text[]) AS u (name)
        CROSS JOIN LATERAL (SELECT ctid FROM stoker.subqueue WHERE queue = $1 AND name = u.name OFFSET 0) AS s
    ))
)
INSERT INTO stoker.subqueue (queue, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since, open)
SELECT $1, u.* FROM unnest(
    $2::text[], $3::text[], $4::int[], $5::int[], $6::int[], $7::float8[], $8::float8[], $9::float8[], $10::float8[], $11::bigint[], $12::smallint[], $13::bigint[], $14::uuid[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::boolean[]
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
