-- Append one message, whose payload is not stored aside. Not registered, or with another count of partitions: no row.
INSERT INTO stoker.incoming (created, id, sid, part, raw, key, type, headers, payload)
SELECT $3::bigint, $4::text::uuid, s.sid, $5::smallint, $6::boolean, $7::text, $8::text, $9::text, $10::bytea
FROM stoker.stream AS s
WHERE s.name = $1::text AND s.partitions = $2::smallint
