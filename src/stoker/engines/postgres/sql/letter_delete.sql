DELETE FROM stoker.letter AS l USING unnest($1::int[], $2::int[], $3::bigint[]) AS u (rid, pid, number)
WHERE l.rid = u.rid AND l.pid = u.pid AND l.number = u.number
