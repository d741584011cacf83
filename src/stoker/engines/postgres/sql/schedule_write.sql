UPDATE stoker.schedule AS s SET schedule = n.schedule
FROM unnest($1::text[], $2::text[]) AS n (name, schedule)
WHERE s.name = n.name
RETURNING s.name
