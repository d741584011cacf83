UPDATE stoker_parked SET released = 1
WHERE rid = ?1 AND pid BETWEEN ?2 * 64 AND ?2 * 64 + 63 AND key = ?3
RETURNING pid
