UPDATE stoker_workers SET lease_until = ?2 WHERE name = ?1 AND lease_until IS NOT NULL RETURNING wid
