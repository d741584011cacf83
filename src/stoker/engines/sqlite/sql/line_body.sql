-- The queue, tenant and options of a job that waits in a line.
SELECT b.qid, b.tenant, b.options
FROM stoker_ready AS r CROSS JOIN stoker_body AS b ON b.seq = r.seq
WHERE r.qid = ?1
LIMIT 1
