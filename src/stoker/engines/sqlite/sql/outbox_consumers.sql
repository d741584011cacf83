SELECT k.rid, k.sid, s.name, k.name
FROM stoker_streams AS s
JOIN stoker_consumers AS k ON k.sid = s.sid
WHERE (?1 IS NULL OR s.name = ?1) AND (?2 IS NULL OR k.name = ?2)
