DELETE FROM stoker_parked WHERE rid = ?1 AND pid = ?2 AND key = ?3
