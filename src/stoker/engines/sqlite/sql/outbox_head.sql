-- The place of the newest message of a partition, also when all are deleted. Without such a stream, or with another
-- count of partitions, no row.
SELECT coalesce(
    (
        SELECT max(m.place) FROM stoker_messages AS m
        WHERE m.place BETWEEN p.pid << 40 AND (p.pid + 1 << 40) - 1
    ),
    (p.pid << 40) + p.swept
)
FROM stoker_streams AS s
JOIN stoker_partitions AS p ON p.pid = s.sid * 64 + ?3
WHERE s.name = ?1 AND s.partitions = ?2
