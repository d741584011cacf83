INSERT INTO stoker_body (seq, id, qid, priority, due, kind, payload, budget, created, ukey, utraits, tenant, options)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
ON CONFLICT (id) DO NOTHING
RETURNING seq
