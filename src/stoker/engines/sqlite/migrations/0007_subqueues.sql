-- Limits by key and fair queues. A subqueue is a line of stoker_ready with a negative number, -sid, so that claims take
-- from it as from any line. `line` of a body says where the job waits; NULL: in the main line of its queue.
ALTER TABLE stoker_queues ADD COLUMN fair INTEGER NOT NULL DEFAULT 0;
ALTER TABLE stoker_queues ADD COLUMN limits TEXT;
ALTER TABLE stoker_queues ADD COLUMN claims INTEGER NOT NULL DEFAULT 0;
ALTER TABLE stoker_body ADD COLUMN line INTEGER;

-- model.subqueues.State: what runs, what may, and the first job that may start (priority, due, id). One that is touched
-- has a `next` at or before now. A subqueue without a limit belongs to a tenant; one without a rate has NULL from `rate_n`
-- to `refilled`.
CREATE TABLE stoker_subqueues (
    sid INTEGER PRIMARY KEY,
    qid INTEGER NOT NULL,
    name TEXT NOT NULL,
    limited TEXT,
    number INTEGER,
    pinned INTEGER,
    running INTEGER NOT NULL,
    rate_n REAL,
    rate_per REAL,
    rate_burst REAL,
    tokens REAL,
    refilled INTEGER,
    priority INTEGER,
    due INTEGER,
    id BLOB,
    next INTEGER,
    at INTEGER,
    turn INTEGER NOT NULL,
    since INTEGER,
    open INTEGER NOT NULL CHECK (open IN (0, 1)),
    UNIQUE (qid, name)
);
CREATE INDEX stoker_subqueues_heads ON stoker_subqueues (qid, priority, due, id) WHERE open = 1;
CREATE INDEX stoker_subqueues_turns ON stoker_subqueues (qid, at, turn, name) WHERE open = 1;
CREATE INDEX stoker_subqueues_timers ON stoker_subqueues (qid, next, name) WHERE next IS NOT NULL;
CREATE INDEX stoker_subqueues_full ON stoker_subqueues (since) WHERE since IS NOT NULL;

DROP VIEW stoker_records;

-- A whole record. A job without a status here is running.
CREATE VIEW stoker_records AS
SELECT
    b.seq,
    b.id,
    b.qid,
    b.line,
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
    ON r.qid = coalesce(b.line, b.qid) AND r.priority = b.priority AND r.due = coalesce(p.due, b.due) AND r.id = b.id
LEFT JOIN stoker_done AS d ON d.id = b.id;
