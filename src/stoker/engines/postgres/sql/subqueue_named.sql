-- Each name is searched for by itself: `= ANY` would be planned as a walk over the queue.
SELECT
    s.name, s.limited, s.number, s.pinned, s.running, s.rate_n, s.rate_per, s.rate_burst, s.tokens, s.refilled,
    s.priority, s.due, s.id, s.next, s.at, s.turn, s.since
FROM unnest($2::text[]) AS u (name)
CROSS JOIN LATERAL (SELECT * FROM stoker.subqueue WHERE queue = $1 AND name = u.name OFFSET 0) AS s
