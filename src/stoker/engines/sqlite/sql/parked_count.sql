SELECT count(*) FROM stoker_parked WHERE rid = ?1 AND pid = ?2
