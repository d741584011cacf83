INSERT INTO stoker_counts (qid, kind, what, n)
VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (qid, kind, what) DO UPDATE SET n = n + excluded.n
