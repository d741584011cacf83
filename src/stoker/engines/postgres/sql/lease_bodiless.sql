-- Claims of jobs whose body is gone: lease, bit, number of bits.
SELECT u.id, l.id, u.pos::int - 1, length(l.open)
FROM stoker.lease AS l CROSS JOIN unnest(l.ids) WITH ORDINALITY AS u (id, pos)
WHERE
    get_bit(l.open, u.pos::int - 1) = 1
    AND NOT EXISTS (SELECT 1 FROM stoker.job AS j WHERE j.id = u.id)
