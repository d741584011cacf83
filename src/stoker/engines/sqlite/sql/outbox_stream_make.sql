INSERT INTO stoker_streams (name, partitions, keep) VALUES (?1, ?2, ?3) RETURNING sid
