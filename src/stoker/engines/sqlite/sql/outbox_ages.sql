SELECT place, created FROM stoker_messages WHERE place > ?1 AND place <= ?2 ORDER BY place LIMIT ?3
