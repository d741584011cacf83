-- name: step_save
-- A finished step, only while its job runs under exactly this worker and token (`steps.stored`: it overwrites).
INSERT INTO stoker_steps (seq, name, state, until, token, at, value)
SELECT ?2, ?4, 0, ?6, ?3, ?7, ?5
FROM stoker_running
WHERE wid = ?1 AND seq = ?2 AND token = ?3
ON CONFLICT (seq, name) DO UPDATE SET
    state = excluded.state, until = excluded.until, token = excluded.token, at = excluded.at, value = excluded.value

-- name: step_seq
SELECT seq FROM stoker_body WHERE id = ?1

-- name: steps_of_job
-- Rows whose names are behind ?2.
SELECT s.name, s.state, s.until, s.token, s.at, s.value
FROM stoker_body AS b
CROSS JOIN stoker_steps AS s ON s.seq = b.seq
WHERE b.id = ?1 AND s.name > ?2
ORDER BY s.at, s.name

-- name: pages_of_job
-- Pages of emitted values (`model.emitted`): their names begin with '!', before those of all steps.
SELECT s.name, s.state, s.until, s.token, s.at, s.value
FROM stoker_body AS b
CROSS JOIN stoker_steps AS s ON s.seq = b.seq
WHERE b.id = ?1 AND s.name < '"' AND s.until > ?2
ORDER BY s.until

-- name: jobs_asking
-- Those with a row of the index of questions (`steps.asks`).
SELECT DISTINCT b.id
FROM stoker_steps AS s INDEXED BY stoker_steps_asks
CROSS JOIN stoker_body AS b ON b.seq = s.seq
WHERE s.state = 2 AND s.value IS NOT NULL AND substr(s.name, 1, 6) <> 'calls:' AND substr(s.value, 1, 8) <> x'7b226b696e64223a'
    AND (?1 IS NULL OR b.id < ?1)
ORDER BY b.id DESC
LIMIT ?2

-- name: job_suspended
-- Where a job stands that is suspended until any of its waits is answered (8), unless it stands in a subqueue.
SELECT q.name, r.qid, r.priority, r.due, r.seq, r.token
FROM stoker_body AS b
CROSS JOIN stoker_past AS p ON p.seq = b.seq
CROSS JOIN stoker_ready AS r ON r.qid = b.qid AND r.priority = b.priority AND r.due = p.due AND r.id = b.id
CROSS JOIN stoker_queues AS q ON q.qid = b.qid
WHERE b.id = ?1 AND b.line IS NULL AND r.settled = 8

-- name: past_due
UPDATE stoker_past SET due = ?2 WHERE seq = ?1

-- name: ready_due
UPDATE stoker_ready SET due = ?5 WHERE qid = ?1 AND priority = ?2 AND due = ?3 AND id = ?4
