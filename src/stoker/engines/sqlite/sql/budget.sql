SELECT name, rate_n, rate_per, rate_burst, tokens, refilled, declared FROM stoker_budgets WHERE name = ?1
