INSERT INTO stoker.audit (at, entry) VALUES ($1, $2)
