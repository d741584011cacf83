-- Waiting jobs get another place. The row changes, so a claim that looked before misses it and looks again.
UPDATE stoker.ready AS r SET queue = u.queue, priority = u.priority, due = u.due
FROM unnest($1::uuid[], $2::text[], $3::smallint[], $4::bigint[]) AS u (id, queue, priority, due)
WHERE r.id = u.id
