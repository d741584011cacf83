-- Delete leases of which every open bit is in its mask.
DELETE FROM stoker.lease AS l USING unnest($1::bigint[], $2::text[]) AS m (id, mask)
WHERE l.id = m.id AND l.id = ANY($1::bigint[]) AND bit_count(l.open & ~m.mask::varbit) = 0
