SELECT name, schedule FROM stoker.schedule ORDER BY name
