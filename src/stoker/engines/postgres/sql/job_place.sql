-- What the body says of the place, so that a retry finds its way back. Without a due time that stays.
UPDATE stoker.job AS j SET queue = u.queue, priority = u.priority, due = coalesce(u.due, j.due)
FROM unnest($1::uuid[], $2::text[], $3::smallint[], $4::bigint[]) AS u (id, queue, priority, due)
WHERE j.id = u.id
