SELECT name FROM stoker.stream ORDER BY name
