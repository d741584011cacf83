-- Lock the leases of those of the jobs that run: lease, bit, number of bits. A settlement waits for the lock. Arrays are
-- compared element by element, so for more than a few jobs everything that runs is looked up in a hash of them instead.
SELECT u.id, l.id, u.pos::int - 1, length(l.open)
FROM stoker.lease AS l CROSS JOIN unnest(l.ids) WITH ORDINALITY AS u (id, pos)
WHERE
    (cardinality($1::uuid[]) > 20 OR l.ids && $1::uuid[])
    AND (u.id IN (SELECT unnest($1::uuid[]))) IS TRUE
    AND get_bit(l.open, u.pos::int - 1) = 1
ORDER BY l.id
FOR UPDATE OF l
