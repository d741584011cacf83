UPDATE stoker_running SET cancel = 1 WHERE wid = ?1 AND seq = ?2
