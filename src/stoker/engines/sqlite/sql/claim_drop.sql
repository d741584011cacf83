-- No `due <= now` here: it would make the planner walk the whole due range.
DELETE FROM stoker_ready WHERE qid = ?1 AND priority = ?2 AND (due, id) <= (?3, ?4)
