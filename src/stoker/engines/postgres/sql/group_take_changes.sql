DELETE FROM stoker.group_change
WHERE id = ANY($1::uuid[])
RETURNING id, n, total, done, dead, canceled, queue, members, at
