UPDATE stoker_body SET qid = ?2, priority = ?3 WHERE seq = ?1
