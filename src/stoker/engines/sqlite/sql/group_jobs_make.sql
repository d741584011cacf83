INSERT INTO stoker_group_jobs (id, callbacks, members) VALUES (?1, ?2, ?3)
