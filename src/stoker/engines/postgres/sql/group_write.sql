UPDATE stoker.job_group SET
    touched = $2::bigint, closed = $3::bigint, expires = $4::bigint, total = $5::int, done = $6::int, dead = $7::int,
    canceled = $8::int, sealed = $9::boolean, abandoned = $10::boolean, queue = $11::text
WHERE id = $1::uuid
