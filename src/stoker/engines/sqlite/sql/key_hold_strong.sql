UPDATE stoker_dedupe SET weak = 0 WHERE slot = ?1 AND seq = ?2
