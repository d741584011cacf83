SELECT finished + ?3, id FROM stoker_done
WHERE status = 3 AND expires - finished = ?3 AND finished < ?1 - ?3
ORDER BY finished, id
LIMIT ?2
