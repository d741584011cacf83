-- A new life: the counter goes on, what it is counted from does not.
INSERT INTO stoker.past AS p (id, due, base)
SELECT u.id, $1::bigint, u.base FROM unnest($2::uuid[], $3::int[]) AS u (id, base)
ON CONFLICT (id) DO UPDATE SET
    due = excluded.due, started = NULL, asked = NULL, base = excluded.base, crashes = 0, progress = NULL
