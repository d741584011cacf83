-- The highest deleted and the highest number of every partition of a stream.
SELECT
    p.pid,
    p.swept,
    coalesce(
        (
            SELECT max(m.place) FROM stoker_messages AS m
            WHERE m.place BETWEEN p.pid << 40 AND (p.pid + 1 << 40) - 1
        ) - (p.pid << 40),
        p.swept
    )
FROM stoker_partitions AS p
WHERE p.pid BETWEEN ?1 * 64 AND ?1 * 64 + 63
ORDER BY p.pid
