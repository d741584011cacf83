SELECT capacity, rate, tokens, refilled FROM stoker.budget WHERE name = $1 FOR UPDATE
