INSERT INTO stoker_subqueues (
    qid, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since, open
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)
ON CONFLICT (qid, name) DO UPDATE SET
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
RETURNING sid
