SELECT
    qid, paused, paused_until, cool_until, rate_n, rate_per, rate_burst, tokens, refilled
FROM stoker_queues
WHERE name = ?1
