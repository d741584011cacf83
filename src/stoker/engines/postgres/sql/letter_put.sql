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
