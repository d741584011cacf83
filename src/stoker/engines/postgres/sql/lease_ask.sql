-- Ask running jobs to stop: one mask for each lease, whatever number of its jobs are meant.
UPDATE stoker.lease AS l SET cancel = coalesce(l.cancel, l.open # l.open) | m.mask::varbit
FROM unnest($1::bigint[], $2::text[]) AS m (id, mask)
WHERE l.id = m.id AND l.id = ANY($1::bigint[])
