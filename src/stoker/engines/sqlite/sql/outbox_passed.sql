-- How far every consumer of a stream has come, per partition, and how far it is deleted.
SELECT c.pid, min(c.position), p.swept
FROM stoker_consumers AS k
JOIN stoker_cursors AS c ON c.rid = k.rid
JOIN stoker_partitions AS p ON p.pid = c.pid
WHERE k.sid = ?1
GROUP BY c.pid, p.swept
HAVING min(c.position) > p.swept
ORDER BY c.pid
