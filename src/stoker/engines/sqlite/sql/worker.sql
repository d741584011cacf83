SELECT wid, lease_until FROM stoker_workers WHERE name = ?1
