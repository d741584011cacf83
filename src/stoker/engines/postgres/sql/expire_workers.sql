-- Names of workers that were reaped, but for the youngest. No worker can come back under one that is forgotten: a worker
-- that is not known is as good as one that was reaped.
DELETE FROM stoker.retired WHERE name = ANY(ARRAY(SELECT name FROM stoker.retired ORDER BY at DESC, name OFFSET $1))
