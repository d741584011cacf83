UPDATE stoker_clock SET high = high RETURNING high
