-- name: groups_kept
-- The parts of `model.kept`. Each reads $4 rows behind the place $1, $2, $3, counts them all, or swaps the values of one:
-- $4 to $6 as they were read, $7 to $9 as they become. `num_nulls` names the types of values that a part does not use.
SELECT 0, 0, id, '', '', NULL::uuid, callbacks, NULL, NULL FROM stoker.job_group
WHERE id > $3::uuid
    AND num_nulls($1::bigint, $2::bigint) >= 0
ORDER BY id LIMIT $4::int

-- name: groups_count_kept
SELECT count(*)::bigint FROM stoker.job_group

-- name: groups_swap
UPDATE stoker.job_group SET callbacks = $7::text
WHERE id = $3::uuid AND callbacks = $4::text
    AND num_nulls($1::bigint, $2::bigint, $5::text, $6::text, $8::text, $9::text, $10::uuid) >= 0
RETURNING 1

-- name: kinds_kept
-- An error of a kind stays until a fold removes it; the newest one counts.
SELECT n, 0, kind, kind, '', NULL::uuid, NULL::bytea, NULL, error FROM stoker.trouble
WHERE (kind, n) > ($3::text COLLATE "C", $1::bigint) AND error IS NOT NULL
    AND num_nulls($2::bigint) >= 0
ORDER BY kind, n LIMIT $4::int

-- name: kinds_count_kept
SELECT count(*)::bigint FROM stoker.trouble WHERE error IS NOT NULL

-- name: kinds_swap
UPDATE stoker.trouble SET error = $9::text
WHERE kind = $3::text AND n = $1::bigint AND error = $6::text
    AND num_nulls($2::bigint, $4::bytea, $5::text, $7::bytea, $8::text, $10::uuid) >= 0
RETURNING 1

-- name: incoming_kept
SELECT i.sid, i.n, i.xid::text, s.name, '', i.id, coalesce(i.payload, b.payload), i.headers, NULL
FROM stoker.incoming AS i
JOIN stoker.stream AS s ON s.sid = i.sid
LEFT JOIN stoker.body AS b ON b.id = i.id
WHERE (i.sid, i.xid, i.n) > ($1::bigint::int, $3::text::xid8, $2::bigint)
ORDER BY i.sid, i.xid, i.n LIMIT $4::int

-- name: incoming_count_kept
SELECT count(*)::bigint FROM stoker.incoming

-- name: incoming_swap
WITH b AS (
    UPDATE stoker.body SET payload = $7::bytea WHERE id = $10::uuid AND payload = $4::bytea
)
UPDATE stoker.incoming SET payload = CASE WHEN payload IS NOT NULL THEN $7::bytea END, headers = $8::text
WHERE sid = $1::bigint::int AND xid = $3::text::xid8 AND n = $2::bigint
    AND (payload IS NULL OR payload = $4::bytea) AND headers IS NOT DISTINCT FROM $5::text
    AND num_nulls($6::text, $9::text) >= 0
RETURNING 1

-- name: messages_kept
SELECT m.pid, m.number, '', s.name, '', m.id, coalesce(m.payload, b.payload), m.headers, NULL
FROM stoker.message AS m
JOIN stoker.stream AS s ON s.sid = m.pid / 64
LEFT JOIN stoker.body AS b ON b.id = m.id
WHERE (m.pid, m.number) > ($1::bigint::int, $2::bigint)
    AND num_nulls($3::text) >= 0
ORDER BY m.pid, m.number LIMIT $4::int

-- name: messages_count_kept
SELECT count(*)::bigint FROM stoker.message

-- name: messages_swap
WITH b AS (
    UPDATE stoker.body SET payload = $7::bytea WHERE id = $10::uuid AND payload = $4::bytea
)
UPDATE stoker.message SET payload = CASE WHEN payload IS NOT NULL THEN $7::bytea END, headers = $8::text
WHERE pid = $1::bigint::int AND number = $2::bigint
    AND (payload IS NULL OR payload = $4::bytea) AND headers IS NOT DISTINCT FROM $5::text
    AND num_nulls($3::text, $6::text, $9::text) >= 0
RETURNING 1

-- name: letters_kept
SELECT l.rid, (l.pid::bigint << 40) + l.number, '', s.name, k.name, l.id, l.payload, l.headers, l.reason
FROM stoker.letter AS l
JOIN stoker.consumer AS k ON k.rid = l.rid
JOIN stoker.stream AS s ON s.sid = k.sid
WHERE (l.rid, l.pid, l.number) > ($1::bigint::int, ($2::bigint >> 40)::int, $2::bigint & ((1::bigint << 40) - 1))
    AND num_nulls($3::text) >= 0
ORDER BY l.rid, l.pid, l.number LIMIT $4::int

-- name: letters_count_kept
SELECT count(*)::bigint FROM stoker.letter

-- name: letters_swap
UPDATE stoker.letter SET payload = $7::bytea, headers = $8::text, reason = $9::text
WHERE rid = $1::bigint::int AND pid = ($2::bigint >> 40)::int AND number = $2::bigint & ((1::bigint << 40) - 1)
    AND id = $10::uuid AND payload = $4::bytea AND headers IS NOT DISTINCT FROM $5::text AND reason = $6::text
    AND num_nulls($3::text) >= 0
RETURNING 1

-- name: cursors_kept
SELECT c.rid, c.pid, '', s.name, k.name, NULL::uuid, NULL::bytea, NULL, c.last_error
FROM stoker.cursor AS c
JOIN stoker.consumer AS k ON k.rid = c.rid
JOIN stoker.stream AS s ON s.sid = k.sid
WHERE (c.rid, c.pid) > ($1::bigint::int, $2::bigint::int) AND c.last_error IS NOT NULL
    AND num_nulls($3::text) >= 0
ORDER BY c.rid, c.pid LIMIT $4::int

-- name: cursors_count_kept
SELECT count(*)::bigint FROM stoker.cursor WHERE last_error IS NOT NULL

-- name: cursors_swap
UPDATE stoker.cursor SET last_error = $9::text
WHERE rid = $1::bigint::int AND pid = $2::bigint::int AND last_error = $6::text
    AND num_nulls($3::text, $4::bytea, $5::text, $7::bytea, $8::text, $10::uuid) >= 0
RETURNING 1

-- name: parked_kept
SELECT p.rid, p.pid, p.key, s.name, k.name, NULL::uuid, NULL::bytea, NULL, p.reason
FROM stoker.parked AS p
JOIN stoker.consumer AS k ON k.rid = p.rid
JOIN stoker.stream AS s ON s.sid = k.sid
WHERE (p.rid, p.pid, p.key) > ($1::bigint::int, $2::bigint::int, $3::text COLLATE "C")
ORDER BY p.rid, p.pid, p.key LIMIT $4::int

-- name: parked_count_kept
SELECT count(*)::bigint FROM stoker.parked

-- name: parked_swap
UPDATE stoker.parked SET reason = $9::text
WHERE rid = $1::bigint::int AND pid = $2::bigint::int AND key = $3::text AND reason = $6::text
    AND num_nulls($4::bytea, $5::text, $7::bytea, $8::text, $10::uuid) >= 0
RETURNING 1
