SELECT b.id, n.seq FROM stoker_running AS n CROSS JOIN stoker_body AS b ON b.seq = n.seq
