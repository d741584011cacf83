INSERT INTO stoker_lone (seq, id, qid, priority, due, kind, payload, budget, created, tenant, options, mark_before)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
