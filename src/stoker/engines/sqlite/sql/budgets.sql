SELECT name, capacity, rate, tokens, refilled FROM stoker_budgets ORDER BY name
