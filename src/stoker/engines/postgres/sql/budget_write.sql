UPDATE stoker.budget SET
    rate_n = $2, rate_per = $3, rate_burst = $4, tokens = $5, refilled = $6, declared = $7
WHERE name = $1
