SELECT qid, name FROM stoker_queues
