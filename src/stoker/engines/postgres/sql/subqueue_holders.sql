-- The jobs that hold slots of a queue's subqueues: those that run, and those that wait with the slot they kept.
SELECT j.id, j.options
FROM stoker.lease AS l
CROSS JOIN LATERAL unnest(l.ids) WITH ORDINALITY AS u (id, pos)
JOIN stoker.job AS j ON j.id = u.id
WHERE l.queue = $1 AND get_bit(l.open, u.pos::int - 1) = 1 AND j.options IS NOT NULL
UNION ALL
SELECT j.id, j.options
FROM stoker.ready AS r
JOIN stoker.job AS j ON j.id = r.id
WHERE r.queue = $1 AND r.past AND r.settled IN (0, 2) AND j.options IS NOT NULL
