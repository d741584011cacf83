UPDATE stoker_body SET line = ?2 WHERE seq = ?1
