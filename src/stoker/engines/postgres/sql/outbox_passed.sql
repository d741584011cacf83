-- How far every consumer of a stream has come, per partition, and how far it is deleted.
SELECT g.pid, min(c.position), coalesce(w.number, 0)
FROM stoker.stream AS s
CROSS JOIN LATERAL (SELECT s.sid * 64 + part AS pid FROM generate_series(0, s.partitions - 1) AS part) AS g
JOIN stoker.consumer AS k ON k.sid = s.sid
CROSS JOIN LATERAL (
    SELECT v.position FROM stoker.cursor AS v WHERE v.rid = k.rid AND v.pid = g.pid
    ORDER BY v.rid DESC, v.pid DESC, v.turn DESC LIMIT 1
) AS c
LEFT JOIN stoker.swept AS w ON w.pid = g.pid
WHERE s.sid = $1::int
GROUP BY g.pid, w.number
HAVING min(c.position) > coalesce(w.number, 0)
ORDER BY g.pid
