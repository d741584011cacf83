DELETE FROM stoker_done WHERE id = ?1
