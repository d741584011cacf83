SELECT claims FROM stoker_queues WHERE qid = ?1
