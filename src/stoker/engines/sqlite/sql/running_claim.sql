SELECT
    b.id,
    b.kind,
    b.payload,
    n.attempts,
    b.budget,
    n.token,
    n.claimed,
    b.created,
    coalesce(p.due, b.due),
    b.priority,
    n.seq,
    n.qid,
    b.options,
    b.ukey,
    b.utraits,
    b.tenant,
    n.cancel,
    p.seq IS NOT NULL,
    coalesce(p.base, 0),
    coalesce(p.crashes, 0),
    coalesce(p.throttles, 0),
    p.metadata,
    w.name,
    n.former_at,
    (SELECT e.error FROM stoker_errors AS e WHERE e.seq = n.seq ORDER BY e.n DESC LIMIT 1)
FROM stoker_running AS n
CROSS JOIN stoker_body AS b ON b.seq = n.seq
LEFT JOIN stoker_past AS p ON p.seq = n.seq
LEFT JOIN stoker_workers AS w ON w.wid = n.former
WHERE n.wid = ?1 AND n.seq = ?2
