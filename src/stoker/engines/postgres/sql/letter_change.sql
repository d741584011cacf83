UPDATE stoker.letter AS l
SET
    failed = u.failed, status = u.status, due = u.due, attempts = u.attempts, holder = u.holder, token = u.token,
    until = u.until, ended = u.ended, reason = u.reason
FROM unnest(
    $1::int[], $2::int[], $3::bigint[], $4::bigint[], $5::text[], $6::boolean[], $7::int[], $8::text[], $9::bigint[],
    $10::bigint[], $11::bigint[], $12::text[]
) AS u (rid, pid, number, failed, status, due, attempts, holder, token, until, ended, reason)
WHERE l.rid = u.rid AND l.pid = u.pid AND l.number = u.number
