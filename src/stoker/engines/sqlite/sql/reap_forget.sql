UPDATE stoker_workers SET lease_until = NULL
WHERE wid = ?1 AND NOT EXISTS (SELECT 1 FROM stoker_running AS n WHERE n.wid = ?1)
RETURNING name
