DELETE FROM stoker_body WHERE seq = ?1
