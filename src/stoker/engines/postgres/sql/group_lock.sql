-- Open groups, each by one transaction at a time; one that jobs are joining now is left to a later sweep.
SELECT id, created, touched, closed, expires, total, done, dead, canceled, sealed, abandoned, queue, callbacks
FROM stoker.job_group
WHERE id = ANY($1::uuid[]) AND closed IS NULL
ORDER BY id
FOR NO KEY UPDATE SKIP LOCKED
