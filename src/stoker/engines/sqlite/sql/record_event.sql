INSERT INTO stoker_events (at, type, job, queue, kind, attempt, duration) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
