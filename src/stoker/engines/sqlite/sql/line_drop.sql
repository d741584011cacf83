DELETE FROM stoker_ready WHERE qid = ?1
