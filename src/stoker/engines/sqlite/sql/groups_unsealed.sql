SELECT id FROM stoker_groups WHERE sealed = 0 AND touched < ?1 ORDER BY touched LIMIT ?2
