-- Groups past their retention, with their members; one that another sweep looks at is left to it.
SELECT
    id, created, touched, closed, expires, total, done, dead, canceled, sealed, abandoned, queue, callbacks, members
FROM stoker.job_group
WHERE id = ANY($1::uuid[]) AND expires < $2::bigint
ORDER BY id
FOR UPDATE SKIP LOCKED
