-- Keys that this transaction holds pass to other jobs, or are held more or less firmly.
UPDATE stoker.dedupe AS d SET id = u.id, firm = u.firm
FROM unnest($1::text[], $2::uuid[], $3::boolean[]) AS u (slot, id, firm)
WHERE d.slot = u.slot
