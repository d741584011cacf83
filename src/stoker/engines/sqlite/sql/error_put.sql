INSERT INTO stoker_errors (seq, at, attempt, error) VALUES (?1, ?2, ?3, ?4)
