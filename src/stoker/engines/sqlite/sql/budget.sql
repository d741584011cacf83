SELECT name, capacity, rate, tokens, refilled FROM stoker_budgets WHERE name = ?1
