-- Take running jobs from their workers, one mask for each lease, which is locked. `lease_drop` deletes a lease of which no
-- bit stays open.
UPDATE stoker.lease AS l SET open = l.open & ~m.mask::varbit
FROM unnest($1::bigint[], $2::text[]) AS m (id, mask)
WHERE l.id = m.id AND l.id = ANY($1::bigint[]) AND bit_count(l.open & ~m.mask::varbit) > 0
