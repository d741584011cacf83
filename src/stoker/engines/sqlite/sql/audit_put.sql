INSERT INTO stoker_audit (at, entry) VALUES (?1, ?2)
