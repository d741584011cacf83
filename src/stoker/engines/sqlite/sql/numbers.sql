UPDATE stoker_clock SET seq = seq + ?1 RETURNING seq
