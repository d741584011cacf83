UPDATE stoker.job_group AS g SET expires = u.until
FROM unnest($1::uuid[], $2::bigint[]) AS u (id, until)
WHERE g.id = u.id
