SELECT seq FROM stoker_running AS n WHERE NOT EXISTS (SELECT 1 FROM stoker_body AS b WHERE b.seq = n.seq) LIMIT 1
