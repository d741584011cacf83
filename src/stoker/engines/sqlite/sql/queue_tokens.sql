UPDATE stoker_queues SET tokens = ?2, refilled = ?3 WHERE qid = ?1
