SELECT
    p.base,
    p.crashes,
    p.throttles,
    p.metadata,
    (SELECT e.error FROM stoker_errors AS e WHERE e.seq = p.seq ORDER BY e.n DESC LIMIT 1)
FROM stoker_past AS p
WHERE p.seq = ?1
