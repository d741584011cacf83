DELETE FROM stoker_groups WHERE id = ?1
