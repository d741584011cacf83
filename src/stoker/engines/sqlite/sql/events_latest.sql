-- A page of blocks before one of them, latest first, with the events of removed jobs, since ?3; otherwise as `events`.
SELECT b.n, b.first, b.last, b.body, 0
FROM stoker_events AS b
WHERE
    (b.first, b.n) < (?1, ?2) AND b.first >= ?3 AND b.last >= ?4
    AND (?6 IS NULL OR (b.low <= ?6 AND b.high >= ?6 AND instr(b.body, ?6) > 0))
ORDER BY b.first DESC, b.n DESC
LIMIT ?5
