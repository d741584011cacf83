DELETE FROM stoker_dedupe WHERE slot = ?1 AND seq = ?2
