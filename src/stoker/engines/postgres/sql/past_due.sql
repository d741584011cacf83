UPDATE stoker.past AS p SET due = u.due
FROM unnest($1::uuid[], $2::bigint[]) AS u (id, due)
WHERE p.id = u.id
