INSERT INTO stoker.group_change (id, at, total, done, dead, canceled, queue, members)
VALUES ($1::uuid, $2::bigint, $3::int, $4::int, $5::int, $6::int, $7::text, $8::uuid[])
