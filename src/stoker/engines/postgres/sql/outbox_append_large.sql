-- Append messages some of which have a payload that is stored beside them: $13 and $14 are ids and payloads of those.
WITH x AS MATERIALIZED (
    SELECT s.sid, pg_current_xact_id() AS xid FROM stoker.stream AS s
    WHERE s.name = $1::text AND s.partitions = $2::smallint
), b AS (
    INSERT INTO stoker.body (id, payload)
    SELECT u.id, u.payload FROM x, unnest($13::uuid[], $14::bytea[]) AS u (id, payload)
)
INSERT INTO stoker.incoming (xid, created, id, sid, part, raw, key, type, headers, payload)
SELECT x.xid, $3::bigint, u.id, x.sid, u.part, u.raw, u.key, coalesce(u.type, $11::text),
    coalesce(u.headers, $12::text), u.payload
FROM
    x,
    unnest(
        $4::text::uuid[], $5::text::smallint[], $6::text::boolean[], $7::text[], $8::text[], $9::text[],
        $10::text::bytea[]
    ) WITH ORDINALITY AS u (id, part, raw, key, type, headers, payload, ord)
ORDER BY u.ord
