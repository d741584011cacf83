-- Waiting jobs of subqueues, by queue: how many are not due, and when the oldest due one became due.
SELECT
    s.queue,
    count(*) FILTER (WHERE r.due > $1 AND r.status = 0),
    min(r.due) FILTER (WHERE r.due <= $1 AND r.status = 0),
    count(*) FILTER (WHERE r.status = 0)
FROM stoker.subqueue_line AS s
JOIN stoker.ready AS r ON r.queue = s.line
GROUP BY s.queue
