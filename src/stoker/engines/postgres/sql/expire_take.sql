-- Delete rows of finished jobs, except those that another transaction has locked.
DELETE FROM stoker.done AS d USING stoker.job AS j
WHERE
    d.id = ANY(ARRAY(SELECT id FROM stoker.done WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED))
    AND j.id = d.id
RETURNING d.id, d.queue, j.kind, d.status
