-- Take keys that are free, in their order; returns those. Waits for another transaction that takes or releases one.
INSERT INTO stoker.dedupe (slot, id, firm)
SELECT u.slot, u.id, u.firm FROM unnest($1::text[], $2::uuid[], $3::boolean[]) AS u (slot, id, firm) ORDER BY u.slot
ON CONFLICT (slot) DO NOTHING
RETURNING slot
