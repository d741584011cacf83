-- What `get_running` tells, of the jobs with these numbers (a list in JSON).
SELECT n.seq, w.wid, w.name, f.name, n.former_at, n.token, n.attempts, n.claimed, n.cancel
FROM stoker_workers AS w
CROSS JOIN stoker_running AS n ON n.wid = w.wid AND n.seq IN (SELECT value FROM json_each(?1))
LEFT JOIN stoker_workers AS f ON f.wid = n.former
WHERE w.lease_until IS NOT NULL
