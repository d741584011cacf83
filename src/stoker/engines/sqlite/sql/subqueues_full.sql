-- Subqueues that have been full since ?1 or before.
SELECT
    qid, sid, name, limited, number, pinned, running, rate_n, rate_per, rate_burst, tokens, refilled,
    priority, due, id, next, at, turn, since
FROM stoker_subqueues
WHERE since <= ?1
