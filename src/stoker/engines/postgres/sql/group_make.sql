INSERT INTO stoker.job_group (
    id, created, touched, closed, expires, total, done, dead, canceled, sealed, abandoned, queue, callbacks, members
)
VALUES (
    $1::uuid, $2::bigint, $2::bigint, NULL, NULL, $3::int, 0, 0, 0, $4::boolean, $5::boolean, $6::text, $7::text,
    $8::uuid[]
)
ON CONFLICT (id) DO NOTHING
RETURNING id
