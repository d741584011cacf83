SELECT name, capacity, rate, tokens, refilled FROM stoker.budget ORDER BY name
