-- name: lines_lost
-- Lines in which jobs wait and whose subqueue is gone, at most ?1.
WITH RECURSIVE line (qid) AS (
    SELECT min(qid) FROM stoker_ready WHERE qid < 0
    UNION ALL
    SELECT (SELECT min(r.qid) FROM stoker_ready AS r WHERE r.qid > line.qid AND r.qid < 0)
    FROM line WHERE line.qid IS NOT NULL
)
SELECT qid FROM line
WHERE qid IS NOT NULL AND NOT EXISTS (SELECT 1 FROM stoker_subqueues AS s WHERE s.sid = -line.qid)
LIMIT ?1

-- name: line_body
-- The queue, tenant and options of a job that waits in a line.
SELECT b.qid, b.tenant, b.options
FROM stoker_ready AS r CROSS JOIN stoker_body AS b ON b.seq = r.seq
WHERE r.qid = ?1
LIMIT 1

-- name: line_bodies_move
UPDATE stoker_body SET line = ?2 WHERE seq IN (SELECT seq FROM stoker_ready WHERE qid = ?1)

-- name: line_move
UPDATE stoker_ready SET qid = ?2 WHERE qid = ?1

-- name: line_drop
DELETE FROM stoker_ready WHERE qid = ?1

-- name: running_bodiless_drop
-- Claims of jobs whose body is gone.
DELETE FROM stoker_running WHERE NOT EXISTS (SELECT 1 FROM stoker_body AS b WHERE b.seq = stoker_running.seq)
RETURNING seq

-- name: running_bodiless
SELECT seq FROM stoker_running AS n WHERE NOT EXISTS (SELECT 1 FROM stoker_body AS b WHERE b.seq = n.seq) LIMIT 1

-- name: counts_adrift
-- Counters of waiting and running jobs in queues in which none waits or runs.
SELECT c.qid, q.name, c.kind, c.what, c.n
FROM stoker_counts AS c JOIN stoker_queues AS q ON q.qid = c.qid
WHERE
    c.n <> 0
    AND (
        (
            c.what IN (0, 2)
            AND NOT EXISTS (SELECT 1 FROM stoker_ready AS r WHERE r.qid = c.qid)
            AND NOT EXISTS (
                SELECT 1 FROM stoker_subqueues AS g CROSS JOIN stoker_ready AS r ON r.qid = -g.sid WHERE g.qid = c.qid
            )
        )
        OR (c.what = 1 AND NOT EXISTS (SELECT 1 FROM stoker_running AS u WHERE u.qid = c.qid))
    )
