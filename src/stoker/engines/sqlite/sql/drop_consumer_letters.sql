DELETE FROM stoker_letters WHERE rid = ?1
