-- name: outbox_sequence
SELECT moved, seen::text, missed, started
FROM stoker.sequence($1::text, $2::text::pg_snapshot, $3::bigint, $4::int, $5::boolean, $6::boolean)

-- name: outbox_look
-- Number what is committed, and then show cursors.
SELECT s.moved, s.seen::text, s.missed, s.started, c.*
FROM stoker.sequence($1::text, $2::text::pg_snapshot, $3::bigint, $4::int, $5::boolean, $6::boolean) AS s
LEFT JOIN LATERAL stoker.cursors(
    s.moved, $1::text, $7::text, $8::int, $9::text, $10::bigint, $11::bigint
) AS c ON true

-- name: outbox_sequence_lock
SELECT pg_advisory_xact_lock(hashtext('stoker.sequence'), $1::int)
