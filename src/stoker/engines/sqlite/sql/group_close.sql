UPDATE stoker_groups SET closed = ?2, expires = ?3 WHERE id = ?1
