DELETE FROM stoker_ready WHERE qid = ?1 AND priority = ?2 AND due = ?3 AND id = ?4
