-- Of the first ?1 waiting jobs those whose body is gone.
SELECT r.id
FROM (SELECT id, seq FROM stoker_ready LIMIT ?1) AS r
WHERE NOT EXISTS (SELECT 1 FROM stoker_body AS b WHERE b.seq = r.seq)
LIMIT 20
