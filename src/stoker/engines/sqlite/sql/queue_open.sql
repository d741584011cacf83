SELECT qid, paused, cool_until FROM stoker_queues WHERE name = ?1
