INSERT INTO stoker_events (first, last, low, high, count, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
