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
