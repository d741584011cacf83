SELECT
    name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker.subqueue
WHERE queue = $1 AND name = ANY($2::text[])
