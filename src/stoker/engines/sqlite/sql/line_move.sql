UPDATE stoker_ready SET qid = ?2 WHERE qid = ?1
