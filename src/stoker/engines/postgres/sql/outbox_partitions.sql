-- The highest deleted and the highest number of every partition of a stream.
SELECT s.sid * 64 + g.part, coalesce(w.number, 0), coalesce(m.number, w.number, 0)
FROM stoker.stream AS s
CROSS JOIN LATERAL generate_series(0, s.partitions - 1) AS g (part)
LEFT JOIN stoker.swept AS w ON w.pid = s.sid * 64 + g.part
LEFT JOIN LATERAL (
    SELECT m.number FROM stoker.message AS m WHERE m.pid = s.sid * 64 + g.part ORDER BY m.pid DESC, m.number DESC LIMIT 1
) AS m ON true
WHERE s.sid = $1::int
ORDER BY g.part
