-- The holders of keys, and how each of them waits (no status: it runs), in a snapshot later than that of `take_keys`.
SELECT d.slot, d.id, d.firm, (SELECT r.status FROM stoker.ready AS r WHERE r.id = d.id) AS status
FROM stoker.dedupe AS d WHERE d.slot = ANY($1::text[])
