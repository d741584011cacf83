SELECT
    b.id,
    b.kind,
    b.payload,
    r.attempts + 1,
    b.budget,
    max(?3, r.token + 1),
    b.created,
    r.due,
    r.seq,
    b.options,
    b.ukey,
    b.utraits,
    b.tenant,
    r.status,
    r.past
FROM (
    SELECT due, id, seq, attempts, token, status, past
    FROM stoker_ready
    WHERE qid = ?1 AND priority = ?2 AND due <= ?3
    ORDER BY due, id
    LIMIT ?4
) AS r
CROSS JOIN stoker_body AS b ON b.seq = r.seq
