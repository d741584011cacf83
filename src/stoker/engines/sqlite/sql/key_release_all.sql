DELETE FROM stoker_dedupe WHERE seq = ?1
