-- Subqueues of a queue that have been full since $2 or before, with the slots that the log gives back; and the options of
-- all jobs that hold slots, as in `subqueue_holders`. One snapshot: an end removes its claim and appends to the log at once.
SELECT s.name, s.running, coalesce(sum(l.freed), 0)::int, NULL::text
FROM stoker.subqueue AS s
LEFT JOIN stoker.subqueue_log AS l ON l.queue = s.queue AND l.name = s.name
WHERE s.queue = $1 AND s.since <= $2::bigint
GROUP BY s.name, s.running
UNION ALL
SELECT NULL, NULL, NULL, j.options
FROM stoker.lease AS l
CROSS JOIN LATERAL unnest(l.ids) WITH ORDINALITY AS u (id, pos)
JOIN stoker.job AS j ON j.id = u.id
WHERE l.queue = $1 AND get_bit(l.open, u.pos::int - 1) = 1 AND j.options IS NOT NULL
UNION ALL
SELECT NULL, NULL, NULL, j.options
FROM stoker.ready AS r
JOIN stoker.job AS j ON j.id = r.id
WHERE r.queue = $1 AND r.past AND r.settled IN (0, 2) AND j.options IS NOT NULL
