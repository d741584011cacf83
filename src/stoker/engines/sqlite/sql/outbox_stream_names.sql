SELECT name FROM stoker_streams ORDER BY name
