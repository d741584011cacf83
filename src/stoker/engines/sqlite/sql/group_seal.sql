UPDATE stoker_groups SET sealed = 1, abandoned = ?2 WHERE id = ?1 AND sealed = 0 RETURNING id
