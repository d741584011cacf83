-- Take running jobs away from their workers, one mask for each lease.
UPDATE stoker.lease AS l SET open = l.open & ~m.mask::varbit
FROM unnest($1::bigint[], $2::text[]) AS m (id, mask)
WHERE l.id = m.id AND l.id = ANY($1::bigint[])
