DELETE FROM stoker_parked WHERE rid = ?1
