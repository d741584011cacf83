-- The engine's own view of a whole record is `stoker_records`; `stoker_jobs` is for people and stays as it is.

DROP VIEW stoker_jobs;

-- A whole record. A job without a status here is running.
CREATE VIEW stoker_records AS
SELECT
    b.seq,
    b.id,
    b.qid,
    b.kind,
    b.payload,
    b.priority,
    b.budget,
    b.created,
    b.ukey,
    b.utraits,
    b.tenant,
    b.options,
    coalesce(r.status, d.status) AS status,
    coalesce(r.token, d.token) AS token,
    coalesce(r.attempts, d.attempts) AS attempts,
    coalesce(r.settled, d.settled) AS settled,
    coalesce(p.due, b.due) AS due,
    coalesce(d.started, p.started) AS started,
    d.finished,
    d.expires,
    d.cancel,
    d.result,
    d.successor,
    p.base,
    p.crashes,
    p.throttles,
    p.progress,
    p.metadata,
    p.log,
    (SELECT e.error FROM stoker_errors AS e WHERE e.seq = b.seq ORDER BY e.n DESC LIMIT 1) AS last_error
FROM stoker_body AS b
LEFT JOIN stoker_past AS p ON p.seq = b.seq
LEFT JOIN stoker_ready AS r
    ON r.qid = b.qid AND r.priority = b.priority AND r.due = coalesce(p.due, b.due) AND r.id = b.id
LEFT JOIN stoker_done AS d ON d.id = b.id;

-- One row per job, to read with SQL: status as text, times in UTC, payload, result and metadata as JSON. `max_attempts`
-- is what `attempts` may rise to.
CREATE VIEW stoker_jobs AS
SELECT
    lower(
        substr(hex(b.id), 1, 8) || '-' || substr(hex(b.id), 9, 4) || '-' || substr(hex(b.id), 13, 4) || '-'
        || substr(hex(b.id), 17, 4) || '-' || substr(hex(b.id), 21)
    ) AS id,
    b.kind,
    q.name AS queue,
    CASE coalesce(b.status, 1)
        WHEN 0 THEN 'pending' WHEN 1 THEN 'running' WHEN 2 THEN 'retrying' WHEN 3 THEN 'done'
        WHEN 4 THEN 'dead' WHEN 5 THEN 'canceled' WHEN 6 THEN 'discarded' ELSE 'retried'
    END AS status,
    b.priority,
    coalesce(u.attempts, b.attempts) AS attempts,
    coalesce(b.base, 0) + b.budget AS max_attempts,
    CAST(b.payload AS TEXT) AS payload,
    CAST(b.result AS TEXT) AS result,
    strftime('%Y-%m-%dT%H:%M:%S', b.created / 1000000, 'unixepoch')
    || printf('.%06dZ', b.created % 1000000) AS created_at,
    strftime('%Y-%m-%dT%H:%M:%S', b.due / 1000000, 'unixepoch') || printf('.%06dZ', b.due % 1000000) AS scheduled_at,
    strftime('%Y-%m-%dT%H:%M:%S', coalesce(u.claimed, b.started) / 1000000, 'unixepoch')
    || printf('.%06dZ', coalesce(u.claimed, b.started) % 1000000) AS started_at,
    strftime('%Y-%m-%dT%H:%M:%S', b.finished / 1000000, 'unixepoch')
    || printf('.%06dZ', b.finished % 1000000) AS finished_at,
    strftime('%Y-%m-%dT%H:%M:%S', b.expires / 1000000, 'unixepoch')
    || printf('.%06dZ', b.expires % 1000000) AS expires_at,
    CASE WHEN b.status = 3 THEN NULL ELSE b.last_error END AS last_error,
    b.tenant,
    b.ukey AS unique_key,
    w.name AS worker,
    b.progress,
    json_patch(
        CASE
            WHEN json_valid(CAST(b.options AS TEXT))
            THEN coalesce(json_extract(CAST(b.options AS TEXT), '$.metadata'), '{}') ELSE '{}'
        END,
        CASE WHEN json_valid(CAST(b.metadata AS TEXT)) THEN CAST(b.metadata AS TEXT) ELSE '{}' END
    ) AS metadata
FROM stoker_records AS b
LEFT JOIN stoker_queues AS q ON q.qid = b.qid
LEFT JOIN stoker_running AS u ON u.seq = b.seq
LEFT JOIN stoker_workers AS w ON w.wid = u.wid;
