-- Everything the engine stores. Times are integer microseconds, job ids 16 bytes, statuses small integers in the order
-- of model.job.Status: 0 pending, 1 running, 2 retrying, 3 done, 4 dead, 5 canceled, 6 discarded, 7 retried.

-- The store's own clock (it never goes back) and the last row number in use: numbers are not reused.
CREATE TABLE stoker_clock (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    high INTEGER NOT NULL,
    seq INTEGER NOT NULL
);
INSERT INTO stoker_clock (one, high, seq) VALUES (1, 0, 0);

-- A queue's settings and what its gates need. `paused_until` is NULL where only a call resumes the queue; a queue
-- without a rate has NULL from `rate_n` to `refilled`. `declared` is what an app's code declared last, `limits` what an
-- operator set (JSON), `claims` how many claims its subqueues served.
CREATE TABLE stoker_queues (
    qid INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    paused INTEGER NOT NULL CHECK (paused IN (0, 1)),
    paused_until INTEGER,
    paused_reason TEXT,
    paused_by TEXT,
    workers INTEGER,
    rate_n REAL,
    rate_per REAL,
    rate_burst REAL,
    tokens REAL,
    refilled INTEGER,
    keep_done INTEGER NOT NULL,
    keep_dead INTEGER NOT NULL,
    curve_on INTEGER NOT NULL CHECK (curve_on IN (0, 1)),
    curve_base INTEGER NOT NULL,
    curve_max INTEGER NOT NULL,
    cool_until INTEGER,
    cool_count INTEGER NOT NULL,
    declared TEXT,
    fair INTEGER NOT NULL DEFAULT 0,
    limits TEXT,
    claims INTEGER NOT NULL DEFAULT 0
);

-- A worker without a lease was reaped; its name is kept so that it stays unknown for ever.
CREATE TABLE stoker_workers (
    wid INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    lease_until INTEGER
);
CREATE INDEX stoker_workers_living ON stoker_workers (wid) WHERE lease_until IS NOT NULL;

-- What does not change while a job is inserted, claimed and settled; only an operator's change rewrites it.
-- `line` says in which subqueue the job waits; NULL: in the main line of its queue.
CREATE TABLE stoker_body (
    seq INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    qid INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    due INTEGER NOT NULL,
    kind TEXT NOT NULL,
    payload BLOB NOT NULL,
    budget INTEGER NOT NULL,
    created INTEGER NOT NULL,
    ukey TEXT,
    utraits INTEGER,
    tenant TEXT,
    options BLOB,
    line INTEGER
);
CREATE INDEX stoker_body_key ON stoker_body (ukey, id) WHERE ukey IS NOT NULL;
-- Members of groups: jobs without options cost nothing here.
CREATE INDEX stoker_body_group ON stoker_body (
    CASE WHEN json_valid(CAST(options AS TEXT)) THEN json_extract(CAST(options AS TEXT), '$.group') END, id
) WHERE CASE WHEN json_valid(CAST(options AS TEXT)) THEN json_extract(CAST(options AS TEXT), '$.group') END IS NOT NULL;

-- Waiting jobs, in exactly the order claims take them. `past`: the job has a row in stoker_past. `settled`: the status
-- of the last run's settlement, to recognise that settlement when a worker repeats it; 8 or 9: the job is suspended until
-- any or all of its waits are answered.
CREATE TABLE stoker_ready (
    qid INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    due INTEGER NOT NULL,
    id BLOB NOT NULL,
    seq INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    token INTEGER NOT NULL,
    status INTEGER NOT NULL CHECK (status IN (0, 2)),
    past INTEGER NOT NULL,
    settled INTEGER,
    PRIMARY KEY (qid, priority, due, id)
) WITHOUT ROWID;

-- Jobs that wait for a retry, in the order of pages and of their times: few among many waiting jobs.
CREATE INDEX stoker_ready_retrying ON stoker_ready (id) WHERE status = 2;
CREATE INDEX stoker_ready_due ON stoker_ready (due, id) WHERE status = 2;

-- Suspended jobs, so that they can be counted: no other job has an entry. 8 and 9 are `Wakes`.
CREATE INDEX stoker_ready_waiting ON stoker_ready (qid, due, settled) WHERE settled IN (8, 9);

-- Claims, grouped by worker: a renewal and a reap read one range, a settlement finds its row by (worker, seq).
-- `cancel` is when the job was asked to stop, 0 when it was not.
CREATE TABLE stoker_running (
    wid INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    token INTEGER NOT NULL,
    qid INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    claimed INTEGER NOT NULL,
    cancel INTEGER NOT NULL,
    former INTEGER,
    former_at INTEGER,
    PRIMARY KEY (wid, seq)
) WITHOUT ROWID;

-- Finished jobs, in id order. Done jobs are found by their end through the index that also finds those that expire: it
-- groups them by how long they are kept, of which there are few values, so a success is written to one index only. The
-- others serve lists of unsuccessful jobs: of a queue, of all queues, and in the order of their ends. `origin` is the
-- number of the worker whose run ended the job (`model.run_origins`), 0 where none did.
CREATE TABLE stoker_done (
    id BLOB NOT NULL PRIMARY KEY,
    seq INTEGER NOT NULL,
    qid INTEGER NOT NULL,
    status INTEGER NOT NULL CHECK (status BETWEEN 3 AND 7),
    token INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    started INTEGER,
    finished INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    cancel INTEGER NOT NULL,
    settled INTEGER,
    origin INTEGER NOT NULL DEFAULT 0,
    result BLOB,
    successor BLOB
) WITHOUT ROWID;
CREATE INDEX stoker_done_kept ON stoker_done (expires - finished, finished) WHERE status = 3;
CREATE INDEX stoker_done_expires ON stoker_done (expires) WHERE status > 3;
CREATE INDEX stoker_done_listed ON stoker_done (qid, status, id) WHERE status > 3;
CREATE INDEX stoker_done_newest ON stoker_done (status, id) WHERE status > 3;
CREATE INDEX stoker_done_ended ON stoker_done (status, finished, id, qid) WHERE status > 3;

-- What a job has finished and what it waits for, by name (`model.steps`). `state`: 0 done, 1 failed, 2 waiting, 3 early,
-- 4 called. The value is the last column: who reads the others does not read its pages.
CREATE TABLE stoker_steps (
    seq INTEGER NOT NULL,
    name TEXT NOT NULL,
    state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 4),
    until INTEGER,
    token INTEGER NOT NULL,
    at INTEGER NOT NULL,
    value BLOB,
    PRIMARY KEY (seq, name)
) WITHOUT ROWID;
CREATE INDEX stoker_steps_open ON stoker_steps (seq) WHERE state IN (2, 3);

-- What earlier runs left, and what the present one notes. Most jobs never have such a row.
CREATE TABLE stoker_past (
    seq INTEGER PRIMARY KEY,
    due INTEGER,
    base INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    throttles INTEGER NOT NULL,
    started INTEGER,
    progress REAL,
    metadata BLOB,
    log BLOB
);

-- The newest is the job's last error. One without an attempt is no run's error (canceled, superseded) and no history.
CREATE TABLE stoker_errors (
    n INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    attempt INTEGER,
    origin INTEGER NOT NULL DEFAULT 0,
    error TEXT NOT NULL
);
CREATE INDEX stoker_errors_job ON stoker_errors (seq, n);

-- Which job holds a unique key. A weak holder waits for a retry and gives way to a new job. With `until` the key is kept
-- for a time after the success of `job`, which may be gone.
CREATE TABLE stoker_dedupe (
    slot TEXT NOT NULL PRIMARY KEY,
    seq INTEGER NOT NULL,
    weak INTEGER NOT NULL CHECK (weak IN (0, 1)),
    until INTEGER,
    job BLOB
) WITHOUT ROWID;
CREATE INDEX stoker_dedupe_until ON stoker_dedupe (until) WHERE until IS NOT NULL;

-- Limits by key and fair queues. A subqueue is a line of stoker_ready with a negative number, -sid, so that claims take
-- from it as from any line. The rest is model.subqueues.State: what runs, what may, and the first job that may start
-- (priority, due, id). One that is touched has a `next` at or before now. A subqueue without a limit belongs to a
-- tenant; one without a rate has NULL from `rate_n` to `refilled`.
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

-- `what` below 8 is a status (`n` jobs have it now), from 8 on a total since the store was created.
CREATE TABLE stoker_counts (
    qid INTEGER NOT NULL,
    kind TEXT NOT NULL,
    what INTEGER NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (qid, kind, what)
) WITHOUT ROWID;

-- The last error of a kind, until it succeeds again.
CREATE TABLE stoker_troubles (
    kind TEXT NOT NULL PRIMARY KEY,
    error TEXT NOT NULL
) WITHOUT ROWID;

-- The buckets of each measure, and what code declared, as JSON.
CREATE TABLE stoker_budgets (
    name TEXT NOT NULL PRIMARY KEY,
    budget TEXT NOT NULL
) WITHOUT ROWID;

-- The buckets of each key of a keyed budget, until they are full again.
CREATE TABLE stoker_budget_keys (
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    buckets TEXT NOT NULL,
    full_at INTEGER NOT NULL,
    PRIMARY KEY (name, key)
) WITHOUT ROWID;

CREATE INDEX stoker_budget_keys_full ON stoker_budget_keys (name, full_at, key);

CREATE TABLE stoker_locks (
    name TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE stoker_presences (
    worker TEXT NOT NULL PRIMARY KEY,
    seen INTEGER NOT NULL,
    presence BLOB NOT NULL
) WITHOUT ROWID;

-- `schedule` is JSON, as model.schedule packs it.
CREATE TABLE stoker_schedules (
    name TEXT NOT NULL PRIMARY KEY,
    schedule BLOB NOT NULL
) WITHOUT ROWID;

-- Small documents of operators, as JSON: access tokens, sessions of the dashboard and operations.
CREATE TABLE stoker_documents (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

-- Who changed what, as JSON of model.audit. Only `expire` removes entries.
CREATE TABLE stoker_audit (
    n INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    entry BLOB NOT NULL
);
CREATE INDEX stoker_audit_at ON stoker_audit (at);

-- Events are stored in blocks, packed by model.event_blocks: about a tenth of the cost of a row for each event. Their
-- numbers are never used again: a removal compares them.
CREATE TABLE stoker_events (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    low BLOB NOT NULL,
    high BLOB NOT NULL,
    count INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX stoker_events_first ON stoker_events (first);

-- Jobs that were removed and may have events, as model.event_blocks.Removal: in blocks up to `block`, and whenever they
-- come up to `at`. A removal goes when no such block is left.
CREATE TABLE stoker_removed (
    job BLOB NOT NULL PRIMARY KEY,
    block INTEGER NOT NULL,
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX stoker_removed_block ON stoker_removed (block);

-- Chunks of events that were written and jobs that were deleted: later events of them are not written. Kept for
-- model.events.REMEMBERED.
CREATE TABLE stoker_remembered (
    id BLOB NOT NULL PRIMARY KEY,
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX stoker_remembered_at ON stoker_remembered (at);

-- A point holds six values: how many, their sum, three percentiles and the maximum. The index finds points of a few
-- queues, or of all together, without passing over those of every queue.
CREATE TABLE stoker_points (
    bucket INTEGER NOT NULL,
    queue TEXT NOT NULL,
    metric TEXT NOT NULL,
    count INTEGER NOT NULL,
    sum REAL NOT NULL,
    p50 REAL NOT NULL,
    p95 REAL NOT NULL,
    p99 REAL NOT NULL,
    max REAL NOT NULL,
    PRIMARY KEY (bucket, queue, metric)
) WITHOUT ROWID;
CREATE INDEX stoker_points_of_queue ON stoker_points (queue, metric, bucket);

-- What a group counts, changed in the write that changes its members. `qid` is the queue of its first member. The other
-- table holds what a closing stores and the ids of up to a thousand members, 16 bytes each: it is seldom read.
CREATE TABLE stoker_groups (
    id BLOB NOT NULL PRIMARY KEY,
    sealed INTEGER NOT NULL CHECK (sealed IN (0, 1)),
    abandoned INTEGER NOT NULL CHECK (abandoned IN (0, 1)),
    total INTEGER NOT NULL,
    done INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    canceled INTEGER NOT NULL,
    qid INTEGER,
    created INTEGER NOT NULL,
    touched INTEGER NOT NULL,
    closed INTEGER,
    expires INTEGER,
    placed INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX stoker_groups_unsealed ON stoker_groups (touched) WHERE sealed = 0;
CREATE INDEX stoker_groups_expires ON stoker_groups (expires) WHERE expires IS NOT NULL;
CREATE INDEX stoker_groups_open ON stoker_groups (created, id) WHERE closed IS NULL;
CREATE INDEX stoker_groups_closed ON stoker_groups (created, id) WHERE closed IS NOT NULL;

CREATE TABLE stoker_group_jobs (
    id BLOB NOT NULL PRIMARY KEY,
    callbacks BLOB NOT NULL,
    members BLOB NOT NULL
) WITHOUT ROWID;

-- Streams: messages, the cursors of consumers, letters, parked keys and received ids. Times are integer microseconds,
-- ids of messages 16 bytes.
--
-- A partition has the number pid = sid * 64 + partition, a message the place pid << 40 | number: one tree holds the log
-- of every partition in its order. There is one writer at a time, so the next number of a partition is the highest one
-- plus one, and numbers follow commits.

CREATE TABLE stoker_streams (
    sid INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL,
    keep INTEGER NOT NULL
);

-- `swept`: the highest number that was deleted, from which numbers go on when a partition is empty.
CREATE TABLE stoker_partitions (
    pid INTEGER PRIMARY KEY,
    swept INTEGER NOT NULL
);

CREATE TABLE stoker_messages (
    place INTEGER PRIMARY KEY,
    created INTEGER NOT NULL,
    id BLOB NOT NULL,
    raw INTEGER NOT NULL CHECK (raw IN (0, 1)),
    key TEXT NOT NULL,
    type TEXT NOT NULL,
    headers TEXT,
    payload BLOB
);

CREATE TABLE stoker_consumers (
    rid INTEGER PRIMARY KEY,
    sid INTEGER NOT NULL,
    name TEXT NOT NULL,
    paused INTEGER NOT NULL CHECK (paused IN (0, 1)),
    UNIQUE (sid, name)
);

CREATE TABLE stoker_cursors (
    rid INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    position INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    last_error TEXT,
    holder TEXT,
    token INTEGER NOT NULL,
    until INTEGER,
    due INTEGER NOT NULL,
    served INTEGER NOT NULL,
    size INTEGER,
    failures INTEGER NOT NULL,
    parked INTEGER NOT NULL,
    PRIMARY KEY (rid, pid)
) WITHOUT ROWID;

-- Keys whose messages are set aside. `released`: their letters are to be delivered.
CREATE TABLE stoker_parked (
    rid INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    key TEXT NOT NULL,
    since INTEGER NOT NULL,
    reason TEXT NOT NULL,
    released INTEGER NOT NULL CHECK (released IN (0, 1)),
    PRIMARY KEY (rid, pid, key)
) WITHOUT ROWID;

-- Full copies of messages that could not be delivered. The payload comes last: a list that skips a letter does not
-- read it.
CREATE TABLE stoker_letters (
    rid INTEGER NOT NULL,
    place INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    status TEXT NOT NULL,
    due INTEGER NOT NULL CHECK (due IN (0, 1)),
    attempts INTEGER NOT NULL,
    holder TEXT,
    token INTEGER NOT NULL,
    until INTEGER,
    ended INTEGER,
    id BLOB NOT NULL,
    created INTEGER NOT NULL,
    raw INTEGER NOT NULL,
    key TEXT NOT NULL,
    type TEXT NOT NULL,
    headers TEXT,
    reason TEXT NOT NULL,
    payload BLOB NOT NULL,
    UNIQUE (rid, place)
);
CREATE INDEX stoker_letters_failed ON stoker_letters (rid, failed DESC, place);
CREATE INDEX stoker_letters_due ON stoker_letters (rid, place) WHERE due = 1;
CREATE INDEX stoker_letters_parked ON stoker_letters (rid, key, place) WHERE status = 'parked';

-- Ids that an inbox has received.
CREATE TABLE stoker_received (
    source TEXT NOT NULL,
    id TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (source, id)
) WITHOUT ROWID;
CREATE INDEX stoker_received_until ON stoker_received (until);

-- A whole record, as the engine reads it. A job without a status here is running.
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
    d.origin,
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

-- One row per job, for people, to read with SQL: status as text, times in UTC, payload, result and metadata as JSON.
-- `max_attempts` is what `attempts` may rise to.
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
