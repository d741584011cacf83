-- Of the first ?1 unique keys: how many are held by a job that is finished or gone.
SELECT count(*)
FROM (SELECT seq FROM stoker_dedupe ORDER BY slot LIMIT ?1) AS k
LEFT JOIN stoker_body AS b ON b.seq = k.seq
WHERE b.seq IS NULL OR EXISTS (SELECT 1 FROM stoker_done AS d WHERE d.id = b.id)
