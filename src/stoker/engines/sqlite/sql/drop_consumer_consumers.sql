DELETE FROM stoker_consumers WHERE rid = ?1
