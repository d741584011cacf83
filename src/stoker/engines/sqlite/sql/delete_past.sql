DELETE FROM stoker_past WHERE seq = ?1
