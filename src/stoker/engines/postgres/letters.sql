-- name: letters_of
-- Letters of a partition by their numbers, locked.
SELECT
    pid, number, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
FROM stoker.letter
WHERE rid = $1::int AND pid = $2::int AND number = ANY($3::bigint[])
ORDER BY number
FOR UPDATE

-- name: letter_due
SELECT
    pid, number, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
FROM stoker.letter
WHERE rid = $1::int AND pid = $2::int AND due
ORDER BY rid, pid, number
LIMIT 1

-- name: letters_parked
SELECT
    pid, number, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers, reason,
    payload
FROM stoker.letter
WHERE rid = $1::int AND pid = $2::int AND key = $3::text AND status = 'parked'
ORDER BY rid, pid, key, number
LIMIT $4::int

-- name: letter_put
INSERT INTO stoker.letter (
    rid, pid, number, failed, status, due, attempts, holder, token, until, ended, id, created, raw, key, type, headers,
    reason, payload
)
SELECT $1::int, $2::int, u.*
FROM unnest(
    $3::bigint[], $4::bigint[], $5::text[], $6::boolean[], $7::int[], $8::text[], $9::bigint[], $10::bigint[],
    $11::bigint[], $12::uuid[], $13::bigint[], $14::boolean[], $15::text[], $16::text[], $17::text[], $18::text[],
    $19::bytea[]
) AS u
ON CONFLICT (rid, pid, number) DO UPDATE SET
    failed = excluded.failed, status = excluded.status, due = excluded.due, attempts = excluded.attempts,
    holder = excluded.holder, token = excluded.token, until = excluded.until, ended = excluded.ended,
    id = excluded.id, created = excluded.created, raw = excluded.raw, key = excluded.key, type = excluded.type,
    headers = excluded.headers, reason = excluded.reason, payload = excluded.payload

-- name: letter_change
UPDATE stoker.letter AS l
SET
    failed = u.failed, status = u.status, due = u.due, attempts = u.attempts, holder = u.holder, token = u.token,
    until = u.until, ended = u.ended, reason = u.reason
FROM unnest(
    $1::int[], $2::int[], $3::bigint[], $4::bigint[], $5::text[], $6::boolean[], $7::int[], $8::text[], $9::bigint[],
    $10::bigint[], $11::bigint[], $12::text[]
) AS u (rid, pid, number, failed, status, due, attempts, holder, token, until, ended, reason)
WHERE l.rid = u.rid AND l.pid = u.pid AND l.number = u.number

-- name: letter_delete
DELETE FROM stoker.letter AS l USING unnest($1::int[], $2::int[], $3::bigint[]) AS u (rid, pid, number)
WHERE l.rid = u.rid AND l.pid = u.pid AND l.number = u.number

-- name: letters
-- Letters behind a place of the listing ($8 to $12), latest failure first.
SELECT
    k.rid, s.name, k.name, l.pid, l.number, l.failed, l.status, l.due, l.attempts, l.holder, l.token, l.until, l.ended,
    l.id, l.created, l.raw, l.key, l.type, l.headers, l.reason, l.payload
FROM stoker.stream AS s
JOIN stoker.consumer AS k ON k.sid = s.sid
CROSS JOIN LATERAL (
    SELECT * FROM stoker.letter AS l
    WHERE
        l.rid = k.rid
        AND ($3::text IS NULL OR l.status = $3::text)
        AND ($4::text IS NULL OR l.key = $4::text)
        AND ($5::int IS NULL OR (l.pid & 63) = $5::int)
        AND ($6::text IS NULL OR l.type = $6::text)
        AND ($7::uuid[] IS NULL OR l.id = ANY($7::uuid[]))
        AND l.failed <= $8::bigint
        AND (
            l.failed < $8::bigint
            OR (s.name, k.name, l.pid & 63, l.number) > ($9::text, $10::text, $11::int, $12::bigint)
        )
    ORDER BY l.rid, l.failed DESC, l.pid, l.number LIMIT $13::int
) AS l
WHERE ($1::text IS NULL OR s.name = $1::text) AND ($2::text IS NULL OR k.name = $2::text)
ORDER BY l.failed DESC, s.name, k.name, l.pid, l.number
LIMIT $13::int

-- name: letters_count
SELECT count(*)::int
FROM stoker.stream AS s
JOIN stoker.consumer AS k ON k.sid = s.sid
JOIN stoker.letter AS l ON l.rid = k.rid
WHERE
    ($1::text IS NULL OR s.name = $1::text) AND ($2::text IS NULL OR k.name = $2::text)
    AND ($3::text IS NULL OR l.status = $3::text)
    AND ($4::text IS NULL OR l.key = $4::text)
    AND ($5::int IS NULL OR (l.pid & 63) = $5::int)
    AND ($6::text IS NULL OR l.type = $6::text)
    AND ($7::uuid[] IS NULL OR l.id = ANY($7::uuid[]))
    AND l.failed <= $8::bigint
    AND (
        l.failed < $8::bigint
        OR (s.name, k.name, l.pid & 63, l.number) > ($9::text, $10::text, $11::int, $12::bigint)
    )

-- name: parked_put
INSERT INTO stoker.parked (rid, pid, key, since, reason) VALUES ($1::int, $2::int, $3::text, $4::bigint, $5::text)
ON CONFLICT (rid, pid, key) DO UPDATE SET reason = excluded.reason, released = false

-- name: parked_drop
DELETE FROM stoker.parked WHERE rid = $1::int AND pid = $2::int AND key = $3::text
