SELECT k.rid, s.sid
FROM stoker.stream AS s JOIN stoker.consumer AS k ON k.sid = s.sid AND k.name = $2::text
WHERE s.name = $1::text
