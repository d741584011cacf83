DELETE FROM stoker_letters WHERE rid = ?1 AND place = ?2
