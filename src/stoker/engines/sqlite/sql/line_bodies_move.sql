UPDATE stoker_body SET line = ?2 WHERE seq IN (SELECT seq FROM stoker_ready WHERE qid = ?1)
