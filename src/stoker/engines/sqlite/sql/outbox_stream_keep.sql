UPDATE stoker_streams SET keep = ?2 WHERE sid = ?1
