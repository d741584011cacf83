SELECT d.seq, d.weak, b.id FROM stoker_dedupe AS d CROSS JOIN stoker_body AS b ON b.seq = d.seq WHERE d.slot = ?1
