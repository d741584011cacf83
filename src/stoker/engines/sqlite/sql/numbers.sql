UPDATE stoker_clock SET seq = seq + ?1, high = max(high, ?2) RETURNING seq
