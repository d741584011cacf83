-- The moment of the first request stays.
UPDATE stoker_running SET cancel = ?3 WHERE wid = ?1 AND seq = ?2 AND cancel = 0
