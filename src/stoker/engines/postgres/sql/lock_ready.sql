-- Lock those of the jobs that wait. Claims step over a locked row.
SELECT id FROM stoker.ready WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE
