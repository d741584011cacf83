-- Remove finished jobs from their places, but for those somebody is at.
DELETE FROM stoker.done AS d USING stoker.job AS j
WHERE
    d.id = ANY(ARRAY(SELECT id FROM stoker.done WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED))
    AND j.id = d.id
RETURNING d.id, d.queue, j.kind, d.status
