SELECT name, rate_n, rate_per, rate_burst, tokens, refilled, declared FROM stoker.budget ORDER BY name
