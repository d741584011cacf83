INSERT INTO stoker_messages (place, created, id, raw, key, type, headers, payload) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
