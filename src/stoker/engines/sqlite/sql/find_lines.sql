SELECT -sid FROM stoker_subqueues WHERE qid = ?1
