SELECT
    sid, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker_subqueues
WHERE qid = ?1 AND name = ?2
