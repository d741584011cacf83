INSERT INTO stoker.cursor (rid, pid, position)
SELECT $1::int, u.pid, u.position FROM unnest($2::int[], $3::bigint[]) AS u (pid, position)
