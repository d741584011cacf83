SELECT k.rid, s.sid
FROM stoker_streams AS s
JOIN stoker_consumers AS k ON k.sid = s.sid AND k.name = ?2
WHERE s.name = ?1
