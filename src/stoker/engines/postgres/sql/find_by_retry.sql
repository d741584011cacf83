-- Places of jobs that wait for a retry behind one ($1, $2), soonest first, at most $3.
SELECT r.due, r.id FROM stoker.ready AS r
WHERE r.status = 2 AND (r.due, r.id) > ($1::bigint, $2::uuid)
ORDER BY r.due, r.id LIMIT $3
