UPDATE stoker_parked SET released = 1 WHERE rid = ?1 AND key = ?2 RETURNING pid
