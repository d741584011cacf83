SELECT n.seq, n.token, n.claimed
FROM stoker_running AS n
WHERE n.wid = ?1
ORDER BY n.claimed, n.seq
LIMIT ?2
