SELECT id, seq FROM stoker_ready WHERE qid = ?1
