-- A new life: the counter goes on, what it is counted from does not.
INSERT INTO stoker.past AS p (id, due, started, base)
SELECT u.id, $1::bigint, u.started, u.base FROM unnest($2::uuid[], $3::bigint[], $4::int[]) AS u (id, started, base)
ON CONFLICT (id) DO UPDATE SET due = excluded.due, started = excluded.started, base = excluded.base, crashes = 0
