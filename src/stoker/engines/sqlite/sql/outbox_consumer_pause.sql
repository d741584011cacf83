UPDATE stoker_consumers SET paused = ?2 WHERE rid = ?1
