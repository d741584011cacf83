SELECT wid, name, lease_until FROM stoker_workers WHERE lease_until IS NOT NULL
