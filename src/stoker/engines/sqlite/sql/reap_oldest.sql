SELECT n.wid, n.seq, n.token, n.claimed, b.id
FROM stoker_running AS n
CROSS JOIN stoker_body AS b ON b.seq = n.seq
WHERE n.wid = ?1
