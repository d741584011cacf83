UPDATE stoker_group_jobs SET members = ?2 WHERE id = ?1
