-- Lock leases by their numbers; returns their bits.
SELECT id, open::text FROM stoker.lease WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE
