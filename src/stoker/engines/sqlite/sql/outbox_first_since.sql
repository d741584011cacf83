SELECT place FROM stoker_messages WHERE place BETWEEN ?1 AND ?2 AND created >= ?3 ORDER BY place LIMIT 1
