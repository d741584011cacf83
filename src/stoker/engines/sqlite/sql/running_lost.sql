DELETE FROM stoker_running WHERE seq = ?1
