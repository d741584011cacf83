-- Not those that are touched: their head may be gone.
SELECT
    sid, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker_subqueues
WHERE qid = ?1 AND open = 1 AND (next IS NULL OR next > ?2)
ORDER BY priority, due, id
LIMIT ?3
