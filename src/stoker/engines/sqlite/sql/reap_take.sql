UPDATE stoker_running SET wid = ?3, token = ?4, claimed = ?5, former = ?1, former_at = claimed WHERE wid = ?1 AND seq = ?2
