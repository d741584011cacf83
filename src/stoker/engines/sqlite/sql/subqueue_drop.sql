DELETE FROM stoker_subqueues WHERE qid = ?1 AND name = ?2
