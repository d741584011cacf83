UPDATE stoker.done AS d SET status = $1::smallint, successor = u.successor
FROM unnest($2::uuid[], $3::uuid[]) AS u (id, successor)
WHERE d.id = u.id
