UPDATE stoker_queues SET claims = claims + 1 WHERE qid = ?1 RETURNING claims
