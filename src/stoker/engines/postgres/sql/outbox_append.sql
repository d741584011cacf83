-- Append messages. Not registered, or with another count of partitions: no row. Lists that need no quotes
-- are texts; where all types or headers are the same, $11 and $12, their lists are empty.
INSERT INTO stoker.incoming (xid, created, id, sid, part, raw, key, type, headers, payload)
SELECT x.xid, $3::bigint, u.id, x.sid, u.part, u.raw, u.key, coalesce(u.type, $11::text),
    coalesce(u.headers, $12::text), u.payload
FROM
    (
        SELECT s.sid, pg_current_xact_id() AS xid FROM stoker.stream AS s
        WHERE s.name = $1::text AND s.partitions = $2::smallint OFFSET 0
    ) AS x,
    unnest(
        $4::text::uuid[], $5::text::smallint[], $6::text::boolean[], $7::text[], $8::text[], $9::text[],
        $10::text::bytea[]
    ) WITH ORDINALITY AS u (id, part, raw, key, type, headers, payload, ord)
ORDER BY u.ord
