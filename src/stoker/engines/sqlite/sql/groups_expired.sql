SELECT id FROM stoker_groups WHERE expires < ?1 ORDER BY expires LIMIT ?2
