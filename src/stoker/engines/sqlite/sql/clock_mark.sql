UPDATE stoker_clock SET high = ?1
