-- What a transaction changed about groups that no job joined.
INSERT INTO stoker.group_change (id, at, total, done, dead, canceled)
SELECT u.id, $2::bigint, u.total, u.done, u.dead, u.canceled
FROM unnest($1::uuid[], $3::int[], $4::int[], $5::int[], $6::int[]) AS u (id, total, done, dead, canceled)
