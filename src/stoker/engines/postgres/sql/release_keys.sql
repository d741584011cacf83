-- Release keys in their order, each only if that job holds it.
DELETE FROM stoker.dedupe WHERE ctid = ANY(ARRAY(
    SELECT d.ctid FROM unnest($1::text[], $2::uuid[]) AS u (slot, id), stoker.dedupe AS d
    WHERE d.slot = u.slot AND d.id = u.id ORDER BY d.slot FOR UPDATE OF d
))
