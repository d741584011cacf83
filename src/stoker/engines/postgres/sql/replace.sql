-- A pending holder gets everything the draft says, but its id. The row in the line is a new one: a claim that looked
-- before this commit misses the old row, and with it the old body.
WITH o AS MATERIALIZED (
    SELECT id, queue, kind FROM stoker.job WHERE id = $1::uuid
), g AS (
    DELETE FROM stoker.ready WHERE id = $1::uuid AND status = 0 RETURNING id, token, attempts, settled, past
), n AS (
    INSERT INTO stoker.ready (due, token, id, attempts, priority, status, settled, past, queue)
    SELECT $2::bigint, token, id, attempts, $3::smallint, 0, settled, past, $4::text FROM g
), j AS (
    UPDATE stoker.job AS j SET
        due = $2::bigint, priority = $3::smallint, queue = $4::text, kind = $5::text, payload = $6::text,
        budget = $7::int, tenant = $8::text, options = $9::text, ukey = $10::text, utraits = $11::smallint
    FROM g WHERE j.id = g.id
), p AS (
    UPDATE stoker.past AS p SET due = $2::bigint FROM g WHERE g.past AND p.id = g.id
), k AS (
    UPDATE stoker.dedupe AS d SET firm = $13::boolean FROM g
    WHERE d.slot = $12::text AND d.id = g.id AND d.firm <> $13::boolean
), c AS (
    INSERT INTO stoker.delta (queue, kind, pending)
    SELECT o.queue, o.kind, -1 FROM o, g UNION ALL SELECT $4::text, $5::text, 1 FROM g
)
SELECT id FROM g
