SELECT b.id, n.token, n.cancel, n.claimed
FROM stoker_running AS n
CROSS JOIN stoker_body AS b ON b.seq = n.seq
WHERE n.wid = ?1
