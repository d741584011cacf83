SELECT w.wid, w.name, n.token, n.attempts, n.claimed, n.cancel
FROM stoker_workers AS w
CROSS JOIN stoker_running AS n ON n.wid = w.wid AND n.seq = ?1
WHERE w.lease_until IS NOT NULL
