-- Not those that are touched: their head may be gone.
SELECT
    name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker.subqueue
WHERE queue = $1 AND open AND (next IS NULL OR next > $2)
ORDER BY queue, priority, due, id LIMIT $3
