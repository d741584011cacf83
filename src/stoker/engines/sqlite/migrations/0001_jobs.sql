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
-- without a rate has NULL from `rate_n` to `refilled`. `declared` is what an app's code declared last.
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
    declared TEXT
);

-- A worker without a lease was reaped; its name is kept so that it stays unknown for ever.
CREATE TABLE stoker_workers (
    wid INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    lease_until INTEGER
);
CREATE INDEX stoker_workers_living ON stoker_workers (wid) WHERE lease_until IS NOT NULL;

-- What does not change while a job is inserted, claimed and settled; only an operator's change rewrites it.
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
    options BLOB
);
CREATE INDEX stoker_body_key ON stoker_body (ukey, id) WHERE ukey IS NOT NULL;

-- Waiting jobs, in exactly the order claims take them. `past`: the job has a row in stoker_past. `settled`: the status
-- of the last run's settlement, to recognise that settlement when a worker repeats it.
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

-- Jobs that wait for a retry, in the order of pages: few among many waiting jobs.
CREATE INDEX stoker_ready_retrying ON stoker_ready (id) WHERE status = 2;

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

-- Finished jobs, in id order. The second index serves lists of unsuccessful jobs; successful ones are not in it.
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
    result BLOB,
    successor BLOB
) WITHOUT ROWID;
CREATE INDEX stoker_done_expires ON stoker_done (expires);
CREATE INDEX stoker_done_listed ON stoker_done (qid, status, id) WHERE status > 3;

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
    error TEXT NOT NULL
);
CREATE INDEX stoker_errors_job ON stoker_errors (seq, n);

-- Which job holds a unique key. A weak holder waits for a retry and gives way to a new job.
CREATE TABLE stoker_dedupe (
    slot TEXT NOT NULL PRIMARY KEY,
    seq INTEGER NOT NULL,
    weak INTEGER NOT NULL CHECK (weak IN (0, 1))
) WITHOUT ROWID;

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

CREATE TABLE stoker_budgets (
    name TEXT NOT NULL PRIMARY KEY,
    rate_n REAL NOT NULL,
    rate_per REAL NOT NULL,
    rate_burst REAL NOT NULL,
    tokens REAL NOT NULL,
    refilled INTEGER NOT NULL,
    declared TEXT
) WITHOUT ROWID;

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

CREATE TABLE stoker_events (
    n INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    type TEXT NOT NULL,
    job BLOB NOT NULL,
    queue TEXT NOT NULL,
    kind TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    duration INTEGER
);
CREATE INDEX stoker_events_at ON stoker_events (at);
CREATE INDEX stoker_events_job ON stoker_events (job);

-- Chunks of events that were written and jobs that were deleted: later events of them are not written. Kept for
-- model.events.REMEMBERED.
CREATE TABLE stoker_remembered (
    id BLOB NOT NULL PRIMARY KEY,
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX stoker_remembered_at ON stoker_remembered (at);

CREATE TABLE stoker_points (
    bucket INTEGER NOT NULL,
    queue TEXT NOT NULL,
    metric TEXT NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (bucket, queue, metric)
) WITHOUT ROWID;

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
    expires INTEGER
) WITHOUT ROWID;
CREATE INDEX stoker_groups_unsealed ON stoker_groups (touched) WHERE sealed = 0;
CREATE INDEX stoker_groups_expires ON stoker_groups (expires) WHERE expires IS NOT NULL;

CREATE TABLE stoker_group_jobs (
    id BLOB NOT NULL PRIMARY KEY,
    callbacks BLOB NOT NULL,
    members BLOB NOT NULL
) WITHOUT ROWID;

-- A whole record. A job without a status here is running.
CREATE VIEW stoker_jobs AS
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
