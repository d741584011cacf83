-- In the order of their names, so that two tickers never wait for each other.
SELECT name, schedule FROM stoker.schedule WHERE name = ANY($1::text[]) ORDER BY name FOR UPDATE
