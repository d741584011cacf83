-- Everything the engine stores. Every name is written with the schema `stoker`; the engine puts the real one in its
-- place. Instants are integer microseconds, statuses small integers in the order of model.job.Status: 0 pending,
-- 1 running, 2 retrying, 3 done, 4 dead, 5 canceled, 6 discarded, 7 retried.
--
-- A job is in exactly one of three places, in every snapshot: a row of `ready`, an open bit of a `lease`, a row of
-- `done`. Its body is in `job` wherever it is. Nothing refers to anything by a foreign key, and no row is shared by
-- two transactions that have nothing to do with each other.

CREATE FUNCTION stoker.clock() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS
$$ SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint $$;

-- What an insert writes once and never again; only an operator's change or a replacing draft rewrites it.
CREATE TABLE stoker.job (
    id uuid PRIMARY KEY,
    created bigint NOT NULL,
    due bigint NOT NULL,
    budget integer NOT NULL,
    priority smallint NOT NULL,
    utraits bigint,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    payload text NOT NULL,
    ukey text COLLATE "C",
    tenant text COLLATE "C",
    options text
);
CREATE INDEX job_key ON stoker.job (ukey, id) WHERE ukey IS NOT NULL;
-- Members of groups: the last one that options name is the job's own, those before it are of drafts behind it. Jobs
-- without options cost nothing here.
CREATE INDEX job_member ON stoker.job ((substring(options FROM '.*"group":"([A-Za-z0-9+/]{22}==)"') COLLATE "C"), id)
    WHERE substring(options FROM '.*"group":"([A-Za-z0-9+/]{22}==)"') COLLATE "C" IS NOT NULL;

-- Jobs that wait, in the order claims take them. `token` is that of the last claim, `settled` the status its
-- settlement asked for (-1: none; 8 or 9: suspended until any or all of its waits are answered), `past` whether there is a row in `past`.
CREATE TABLE stoker.ready (
    due bigint NOT NULL,
    token bigint NOT NULL,
    id uuid NOT NULL,
    attempts integer NOT NULL,
    priority smallint NOT NULL,
    status smallint NOT NULL CHECK (status IN (0, 2)),
    settled smallint NOT NULL,
    past boolean NOT NULL,
    queue text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, priority, due, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ready_id ON stoker.ready (id);
CREATE INDEX ready_retrying ON stoker.ready (id) WHERE status = 2;
CREATE INDEX ready_due ON stoker.ready (due, id) WHERE status = 2;

-- Suspended jobs, so that they can be counted: no other job has an entry. 8 and 9 are `Wakes`.
CREATE INDEX ready_waiting ON stoker.ready (queue, due) WHERE settled IN (8, 9);

-- Jobs that were put back, among which are those that kept their slot: few among many waiting jobs.
CREATE INDEX ready_put_back ON stoker.ready (queue) WHERE past AND settled IN (0, 2, 8, 9);

-- One row for everything a worker took from one queue in one call. `open` has a bit for each job that still runs under
-- this claim, `cancel` one for each that was asked to stop. A lease without an open bit does not exist.
CREATE TABLE stoker.lease (
    id bigint PRIMARY KEY,
    token bigint NOT NULL,
    claimed bigint NOT NULL,
    former_at bigint,
    worker text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    former text COLLATE "C",
    open varbit NOT NULL,
    cancel varbit,
    attempts integer[],
    ids uuid[] NOT NULL
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX lease_worker ON stoker.lease (worker, id);
CREATE SEQUENCE stoker.lease_number;

-- Finished jobs. A success pays for no tree but its key: the ends of done jobs are summed up per range of pages, and a
-- page of the latest ones reads the ranges that were written last. The other indexes are for the lists of people. `origin`
-- is the number of the worker whose run ended the job (`model.run_origins`), 0 where none did.
CREATE TABLE stoker.done (
    id uuid PRIMARY KEY,
    finished bigint NOT NULL,
    expires bigint NOT NULL,
    token bigint NOT NULL,
    started bigint,
    attempts integer NOT NULL,
    origin integer NOT NULL DEFAULT 0,
    status smallint NOT NULL CHECK (status BETWEEN 3 AND 7),
    settled smallint NOT NULL,
    cancel boolean NOT NULL,
    queue text COLLATE "C" NOT NULL,
    result text,
    successor uuid
);
CREATE INDEX done_listed ON stoker.done (queue, status, id) WHERE status <> 3;
CREATE INDEX done_finished ON stoker.done USING brin (finished) WITH (pages_per_range = 32, autosummarize = on);
CREATE INDEX done_ended ON stoker.done (status, finished, id) WHERE status <> 3;

-- What runs before this one left behind, and what the present one notes. Most jobs never have such a row. `due` is
-- the last scheduled time when it is not the body's, `started` the claim of the last run that did not finish the job,
-- `asked` when the job was asked to stop.
CREATE TABLE stoker.past (
    id uuid PRIMARY KEY,
    due bigint,
    started bigint,
    asked bigint,
    base integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    throttles integer NOT NULL DEFAULT 0,
    progress double precision,
    metadata jsonb,
    log jsonb
) WITH (fillfactor = 70);

-- What a job has finished and what it waits for, by name (`model.steps`). `state`: 0 done, 1 failed, 2 waiting, 3 early,
-- 4 called. A row is updated when a wait is answered or opened again, and deleted with its job.
CREATE TABLE stoker.step (
    id uuid NOT NULL,
    token bigint NOT NULL,
    at bigint NOT NULL,
    until bigint,
    state smallint NOT NULL CHECK (state BETWEEN 0 AND 4),
    name text COLLATE "C" NOT NULL,
    value text,
    PRIMARY KEY (id, name)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX step_open ON stoker.step (id) WHERE state IN (2, 3);

-- The newest is the job's last error. Without an attempt it was no run's error (canceled, superseded) and no history.
CREATE TABLE stoker.failure (
    id uuid NOT NULL,
    n bigint GENERATED ALWAYS AS IDENTITY,
    at bigint NOT NULL,
    attempt integer,
    origin integer NOT NULL DEFAULT 0,
    error text NOT NULL,
    PRIMARY KEY (id, n)
);

-- Who holds a unique key, from insert to finish. A holder that waits for a retry gives way unless it is firm. With
-- `until` the key is kept for a time after the success of its job, which may be gone.
CREATE TABLE stoker.dedupe (
    slot text COLLATE "C" PRIMARY KEY,
    id uuid NOT NULL,
    firm boolean NOT NULL,
    until bigint
) WITH (fillfactor = 70);
CREATE INDEX dedupe_until ON stoker.dedupe (until) WHERE until IS NOT NULL;

-- A queue's settings and what its gates need. `paused_until` is NULL where only a call resumes the queue; a queue
-- without a rate has NULL from `rate_n` to `refilled`. `declared` is what an app's code declared last, `limits` what an
-- operator set (JSON).
CREATE TABLE stoker.queue (
    name text COLLATE "C" PRIMARY KEY,
    paused boolean NOT NULL,
    paused_until bigint,
    paused_reason text,
    paused_by text,
    workers integer,
    rate_n double precision,
    rate_per double precision,
    rate_burst double precision,
    tokens double precision,
    refilled bigint,
    keep_done bigint NOT NULL,
    keep_dead bigint NOT NULL,
    curve_on boolean NOT NULL,
    curve_base bigint NOT NULL,
    curve_max bigint NOT NULL,
    cool_until bigint,
    cool_count integer NOT NULL,
    declared text,
    fair boolean NOT NULL DEFAULT false,
    limits text
) WITH (fillfactor = 50);

-- Limits by key. A job with a limit, or with a tenant in a fair queue, waits in a line of its own: `queue` of `ready` is
-- then the queue's name, a slash and the subqueue's name (no queue's name contains a slash).

-- What a call that stores, removes or ends a job says about its subqueue: look at it from this instant on, so many slots are
-- free. No call waits for a row of it; claims of the queue, one at a time, apply and delete the rows. `options` are those
-- of a job that joined, `anew` says that it sets the number of its key.
CREATE TABLE stoker.subqueue_log (
    queue text COLLATE "C" NOT NULL,
    n bigint GENERATED ALWAYS AS IDENTITY,
    name text COLLATE "C" NOT NULL,
    freed integer NOT NULL DEFAULT 0,
    look bigint,
    options text,
    anew boolean NOT NULL DEFAULT false,
    PRIMARY KEY (queue, n)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- model.subqueues.State; only claims write it.
CREATE TABLE stoker.subqueue (
    queue text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    limited text COLLATE "C",
    number integer,
    pinned integer,
    running integer NOT NULL,
    rate_n double precision,
    rate_per double precision,
    rate_burst double precision,
    tokens double precision,
    refilled bigint,
    priority smallint,
    due bigint,
    id uuid,
    next bigint,
    at bigint,
    turn bigint NOT NULL,
    since bigint,
    open boolean NOT NULL,
    PRIMARY KEY (queue, name)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX subqueue_heads ON stoker.subqueue (queue, priority, due, id) WHERE open;
CREATE INDEX subqueue_turns ON stoker.subqueue (queue, at, turn, name) WHERE open;
CREATE INDEX subqueue_timers ON stoker.subqueue (queue, next, name) WHERE next IS NOT NULL;

-- How many claims of a queue its subqueues served.
CREATE TABLE stoker.subqueue_round (
    queue text COLLATE "C" PRIMARY KEY,
    claims bigint NOT NULL
) WITH (fillfactor = 50);

CREATE VIEW stoker.subqueue_line AS
SELECT queue, queue || '/' || name AS line FROM stoker.subqueue
UNION
SELECT queue, queue || '/' || name AS line FROM stoker.subqueue_log;

-- Workers with a lease, and those that were reaped: their names are remembered so that they stay unknown for ever.
CREATE TABLE stoker.worker (
    name text COLLATE "C" PRIMARY KEY,
    until bigint NOT NULL,
    lease bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE stoker.retired (
    name text COLLATE "C" PRIMARY KEY,
    at bigint NOT NULL
);

-- How many jobs of a queue and kind are in each status now, and five totals since the store was made. Writes only
-- append to `delta` (absent numbers are zeros); the janitor folds those rows into `tally`. The truth is their sum.
CREATE TABLE stoker.delta (
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    pending integer,
    running integer,
    retrying integer,
    done integer,
    dead integer,
    canceled integer,
    discarded integer,
    retried integer,
    enqueued integer,
    completed integer,
    retries integer,
    failed integer,
    cancels integer
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE stoker.tally (
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    pending bigint NOT NULL DEFAULT 0,
    running bigint NOT NULL DEFAULT 0,
    retrying bigint NOT NULL DEFAULT 0,
    done bigint NOT NULL DEFAULT 0,
    dead bigint NOT NULL DEFAULT 0,
    canceled bigint NOT NULL DEFAULT 0,
    discarded bigint NOT NULL DEFAULT 0,
    retried bigint NOT NULL DEFAULT 0,
    enqueued bigint NOT NULL DEFAULT 0,
    completed bigint NOT NULL DEFAULT 0,
    retries bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    cancels bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, kind)
) WITH (fillfactor = 50);

-- The last error of a kind is its newest row; a row without error says that the kind has succeeded since.
CREATE TABLE stoker.trouble (
    kind text COLLATE "C" NOT NULL,
    n bigint GENERATED ALWAYS AS IDENTITY,
    error text,
    PRIMARY KEY (kind, n)
);

-- The buckets of each measure, and what code declared, as JSON.
CREATE TABLE stoker.budget (
    name text COLLATE "C" PRIMARY KEY,
    budget text NOT NULL
) WITH (fillfactor = 50);

-- The buckets of each key of a keyed budget, until they are full again.
CREATE TABLE stoker.budget_key (
    name text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    buckets text NOT NULL,
    full_at bigint NOT NULL,
    PRIMARY KEY (name, key)
);

CREATE INDEX budget_key_full ON stoker.budget_key (name, full_at, key);

CREATE TABLE stoker.lock (
    name text COLLATE "C" PRIMARY KEY,
    owner text NOT NULL,
    until bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE stoker.presence (
    worker text COLLATE "C" PRIMARY KEY,
    seen bigint NOT NULL,
    presence text NOT NULL
) WITH (fillfactor = 50);

-- `schedule` is JSON, as model.schedule packs it.
CREATE TABLE stoker.schedule (
    name text COLLATE "C" PRIMARY KEY,
    schedule text NOT NULL
) WITH (fillfactor = 50);

-- A group as it was last folded, and what became of its members since then: changes, one row per transaction and group,
-- so that settlements of one group do not wait for each other. `queue` is that of its first member, `members` the ids of
-- up to a thousand, `callbacks` JSON. Only making, sealing, folding and closing write the first; closed, it is final.
CREATE TABLE stoker.job_group (
    id uuid PRIMARY KEY,
    created bigint NOT NULL,
    touched bigint NOT NULL,
    closed bigint,
    expires bigint,
    total integer NOT NULL,
    done integer NOT NULL,
    dead integer NOT NULL,
    canceled integer NOT NULL,
    sealed boolean NOT NULL,
    abandoned boolean NOT NULL,
    queue text COLLATE "C",
    callbacks text NOT NULL,
    members uuid[] NOT NULL,
    placed integer NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX job_group_unsealed ON stoker.job_group (touched) WHERE NOT sealed;
CREATE INDEX job_group_complete ON stoker.job_group (id)
    WHERE sealed AND closed IS NULL AND total <= done + dead + canceled;
CREATE INDEX job_group_expires ON stoker.job_group (expires) WHERE expires IS NOT NULL;
CREATE INDEX job_group_open ON stoker.job_group (created, id) WHERE closed IS NULL;
CREATE INDEX job_group_closed ON stoker.job_group (created, id) WHERE closed IS NOT NULL;

CREATE TABLE stoker.group_change (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL,
    at bigint NOT NULL,
    total integer NOT NULL,
    done integer NOT NULL,
    dead integer NOT NULL,
    canceled integer NOT NULL,
    queue text COLLATE "C",
    members uuid[]
);
CREATE INDEX group_change_id ON stoker.group_change (id);

-- Small documents of operators, as JSON: access tokens, sessions of the dashboard and operations.
CREATE TABLE stoker.document (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    document text NOT NULL,
    PRIMARY KEY (kind, name)
) WITH (fillfactor = 50);

-- Who changed what, as JSON of model.audit. Only `expire` removes entries.
CREATE TABLE stoker.audit (
    at bigint NOT NULL,
    n bigint GENERATED ALWAYS AS IDENTITY,
    entry text NOT NULL,
    PRIMARY KEY (at, n)
);

-- Events are stored in blocks, packed by model.event_blocks: about a tenth of the cost of a row for each event.
CREATE TABLE stoker.event (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    first bigint NOT NULL,
    last bigint NOT NULL,
    low uuid NOT NULL,
    high uuid NOT NULL,
    count integer NOT NULL,
    body bytea NOT NULL
);
-- Ids are random at their ends: trying to compress them is wasted, and a search would have to undo it.
ALTER TABLE stoker.event ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX event_first ON stoker.event (first, n);

-- Jobs that were removed and may have events, as model.event_blocks.Removal: in blocks up to `block`, and whenever they
-- come up to `at`. A removal goes when no such block is left.
CREATE TABLE stoker.removed (
    job uuid PRIMARY KEY,
    block bigint NOT NULL,
    at bigint NOT NULL
);
CREATE INDEX removed_block ON stoker.removed (block);

-- Chunks of events that were written and jobs that were deleted: what comes of them later is not written. Kept for as
-- long as model.events.REMEMBERED says.
CREATE TABLE stoker.remembered (
    id uuid PRIMARY KEY,
    at bigint NOT NULL
);
CREATE INDEX remembered_at ON stoker.remembered (at);

-- A point holds six values: how many, their sum, three percentiles and the maximum. The index finds points of a few
-- queues, or of all together, without passing over those of every queue.
CREATE TABLE stoker.point (
    bucket bigint NOT NULL,
    count bigint NOT NULL,
    sum double precision NOT NULL,
    p50 double precision NOT NULL,
    p95 double precision NOT NULL,
    p99 double precision NOT NULL,
    max double precision NOT NULL,
    queue text COLLATE "C" NOT NULL,
    metric text COLLATE "C" NOT NULL,
    PRIMARY KEY (bucket, queue, metric)
);
CREATE INDEX point_of_queue ON stoker.point (queue, metric, bucket);

-- Where a walk that is done piece by piece goes on.
CREATE TABLE stoker.mark (
    name text COLLATE "C" PRIMARY KEY,
    id uuid NOT NULL
);

-- A version 7 uuid: the milliseconds, then chance.
CREATE FUNCTION stoker.mint() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS
$$
SELECT encode(set_bit(set_bit(overlay(
    uuid_send(gen_random_uuid())
    PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6
), 52, 1), 53, 1), 'hex')::uuid
$$;

-- What a block asks and writes in one round trip with the begin and the commit of its transaction. Such a command takes no
-- values and returns no rows: a claim that is lost is an error, which keeps the commit from being reached. Both are about
-- claims with a lease of their own, which exists as long as the job runs under it. Their plans are made once, perhaps while
-- the tables are empty: they must not learn from that.
CREATE FUNCTION stoker.check_claim(lease bigint, worker text, token bigint) RETURNS void LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS
$$
BEGIN
    PERFORM FROM stoker.lease AS l
    WHERE l.id = check_claim.lease AND l.worker = check_claim.worker AND l.token = check_claim.token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the claim is no longer its worker''s' USING ERRCODE = 'SLOST';
    END IF;
END
$$;

-- A success with its result, as `settle_done` writes it for many: `Record.settle`.
CREATE FUNCTION stoker.settle_claim(
    clock bigint, lease bigint, worker text, token bigint, job uuid, kind text, attempts integer, keep bigint,
    keep_done bigint, result text, origin integer
) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS
$$
DECLARE
    moment bigint := coalesce(clock, stoker.clock());
    ended stoker.lease;
BEGIN
    DELETE FROM stoker.lease AS l
    WHERE l.id = settle_claim.lease AND l.worker = settle_claim.worker AND l.token = settle_claim.token
    RETURNING l.* INTO ended;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the claim is no longer its worker''s' USING ERRCODE = 'SLOST';
    END IF;
    INSERT INTO stoker.done (
        id, finished, expires, token, started, attempts, origin, status, settled, cancel, queue, result
    )
    VALUES (
        settle_claim.job, moment,
        moment + coalesce(
            settle_claim.keep, (SELECT q.keep_done FROM stoker.queue AS q WHERE q.name = ended.queue),
            settle_claim.keep_done
        ),
        ended.token, ended.claimed, settle_claim.attempts, settle_claim.origin, 3, 3,
        coalesce(get_bit(ended.cancel, 0) = 1, false), ended.queue, settle_claim.result
    );
    INSERT INTO stoker.delta (queue, kind, running, done, completed)
    VALUES (ended.queue, settle_claim.kind, -1, 1, 1);
    IF (
        SELECT v.error FROM stoker.trouble AS v WHERE v.kind = settle_claim.kind ORDER BY v.n DESC LIMIT 1
    ) IS NOT NULL THEN
        INSERT INTO stoker.trouble (kind) VALUES (settle_claim.kind);
    END IF;
END
$$;

-- Streams: messages, the cursors of consumers, letters, parked keys and received ids. Instants are integer microseconds.
--
-- A message is appended to `incoming` in the user's transaction and moved to `message` by `sequence`, which gives it its
-- number after the commit. A partition has the number pid = sid * 64 + partition.

CREATE TABLE stoker.stream (
    keep bigint NOT NULL,
    sid integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    partitions smallint NOT NULL,
    name text COLLATE "C" NOT NULL UNIQUE
);

-- Messages without a number. `n` is the order of appends, `xid` the transaction that the message came with: it says
-- where `sequence` has to look, never what is committed. Payloads above 1,500 bytes are in `body`.
CREATE TABLE stoker.incoming (
    n bigint GENERATED ALWAYS AS IDENTITY,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    created bigint NOT NULL,
    id uuid NOT NULL,
    sid integer NOT NULL,
    part smallint NOT NULL,
    raw boolean NOT NULL,
    key text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    headers text,
    payload bytea,
    PRIMARY KEY (sid, xid, n)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE stoker.message (
    number bigint NOT NULL,
    created bigint NOT NULL,
    id uuid NOT NULL,
    pid integer NOT NULL,
    raw boolean NOT NULL,
    key text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    headers text,
    payload bytea,
    PRIMARY KEY (pid, number)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_cost_delay = 0);

-- Large payloads, which stay where they are while their messages move.
CREATE TABLE stoker.body (
    id uuid PRIMARY KEY,
    payload bytea NOT NULL
);
ALTER TABLE stoker.body ALTER COLUMN payload SET STORAGE EXTERNAL;

-- The highest number that was deleted of a partition, from which numbers go on when it is empty.
CREATE TABLE stoker.swept (
    number bigint NOT NULL,
    pid integer PRIMARY KEY
) WITH (fillfactor = 70);

CREATE TABLE stoker.consumer (
    rid integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sid integer NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    name text COLLATE "C" NOT NULL,
    UNIQUE (sid, name)
);

-- One live row for each consumer and partition. Every write raises `turn`, so the newest version is the last of its
-- stretch of the index and is found first, however many dead ones an old snapshot keeps.
CREATE TABLE stoker.cursor (
    turn bigint NOT NULL DEFAULT 0,
    position bigint NOT NULL,
    token bigint NOT NULL DEFAULT 0,
    until bigint,
    due bigint NOT NULL DEFAULT 0,
    served bigint NOT NULL DEFAULT 0,
    rid integer NOT NULL,
    pid integer NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    size integer,
    holder text COLLATE "C",
    last_error text,
    PRIMARY KEY (rid, pid, turn)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Keys whose messages are set aside. `released`: their letters are to be delivered.
CREATE TABLE stoker.parked (
    since bigint NOT NULL,
    rid integer NOT NULL,
    pid integer NOT NULL,
    released boolean NOT NULL DEFAULT false,
    key text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (rid, pid, key)
);

-- Full copies of messages that could not be delivered.
CREATE TABLE stoker.letter (
    number bigint NOT NULL,
    failed bigint NOT NULL,
    created bigint NOT NULL,
    token bigint NOT NULL,
    until bigint,
    ended bigint,
    id uuid NOT NULL,
    rid integer NOT NULL,
    pid integer NOT NULL,
    attempts integer NOT NULL,
    due boolean NOT NULL,
    raw boolean NOT NULL,
    status text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    holder text COLLATE "C",
    headers text,
    reason text NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (rid, pid, number)
);
ALTER TABLE stoker.letter ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE INDEX letter_failed ON stoker.letter (rid, failed DESC, pid, number);
CREATE INDEX letter_due ON stoker.letter (rid, pid, number) WHERE due;
CREATE INDEX letter_parked ON stoker.letter (rid, pid, key, number) WHERE status = 'parked';

-- Ids that an inbox has received.
CREATE TABLE stoker.received (
    until bigint NOT NULL,
    source text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    PRIMARY KEY (source, id)
);
CREATE INDEX received_until ON stoker.received (until);

-- Number what is committed of a stream, at most `most` messages. The rule: a message gets its number only when every
-- message with a lower `n` that is visible in the same snapshot has one already or gets one in the same step. So a step
-- looks at everything that became visible since `previous`, the snapshot up to which everything is numbered: what
-- belongs to transactions that began later, or that were under way then. Without `previous`, on another server than
-- `home`, and with `entire`, it looks at everything; `missed` are then messages that an earlier step should have found.
--
-- The lock is taken by a statement of its own, so that the snapshot of the next one is younger. Another session that
-- numbers at this moment: `moved` is -1, after a short wait if `patient`. `seen` is the snapshot to go on from. Messages
-- of the transaction itself are left alone: they are not committed.
CREATE FUNCTION stoker.sequence(
    stream text, previous pg_snapshot, home bigint, most integer, entire boolean, patient boolean,
    OUT moved integer, OUT seen pg_snapshot, OUT missed integer, OUT started bigint
) LANGUAGE plpgsql VOLATILE
SET enable_bitmapscan = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS
$$
#variable_conflict use_column
DECLARE
    number_of integer;
    own xid8 := pg_current_xact_id_if_assigned();
    before text := current_setting('lock_timeout');
BEGIN
    moved := 0;
    missed := 0;
    started := (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint;
    IF started IS DISTINCT FROM sequence.home THEN
        previous := NULL;
    END IF;
    seen := previous;
    SELECT s.sid INTO number_of FROM stoker.stream AS s WHERE s.name = sequence.stream;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF patient THEN
        BEGIN
            PERFORM set_config('lock_timeout', '200ms', true);
            PERFORM pg_advisory_xact_lock(hashtext('stoker.sequence'), number_of);
            PERFORM set_config('lock_timeout', before, true);
        EXCEPTION WHEN lock_not_available THEN
            moved := -1;
            RETURN;
        END;
    ELSIF NOT pg_try_advisory_xact_lock(hashtext('stoker.sequence'), number_of) THEN
        moved := -1;
        RETURN;
    END IF;
    WITH w AS MATERIALIZED (
        SELECT x.place, x.n FROM (
            SELECT i.ctid AS place, i.n FROM stoker.incoming AS i
            WHERE (previous IS NULL OR entire) AND i.sid = number_of AND i.xid IS DISTINCT FROM own
            UNION ALL
            SELECT i.ctid, i.n FROM stoker.incoming AS i
            WHERE
                previous IS NOT NULL AND NOT entire AND i.sid = number_of AND i.xid >= pg_snapshot_xmax(previous)
                AND i.xid IS DISTINCT FROM own
            UNION ALL
            SELECT i.place, i.n FROM pg_snapshot_xip(previous) AS o, LATERAL (
                SELECT v.ctid AS place, v.n FROM stoker.incoming AS v
                WHERE v.sid = number_of AND v.xid = o AND v.xid IS DISTINCT FROM own
                ORDER BY v.sid, v.xid, v.n OFFSET 0
            ) AS i
            WHERE NOT entire
        ) AS x
        ORDER BY x.n LIMIT most
    ), d AS (
        DELETE FROM stoker.incoming WHERE ctid = ANY(ARRAY(SELECT place FROM w)) RETURNING *
    ), b AS MATERIALIZED (
        SELECT p.part, coalesce(
            (
                SELECT m.number FROM stoker.message AS m WHERE m.pid = number_of * 64 + p.part
                ORDER BY m.pid DESC, m.number DESC LIMIT 1
            ),
            (SELECT s.number FROM stoker.swept AS s WHERE s.pid = number_of * 64 + p.part),
            0
        ) AS last
        FROM (SELECT DISTINCT d.part FROM d) AS p
    ), i AS (
        INSERT INTO stoker.message (number, created, id, pid, raw, key, type, headers, payload)
        SELECT
            b.last + row_number() OVER (PARTITION BY d.part ORDER BY d.n), d.created, d.id, number_of * 64 + d.part,
            d.raw, d.key, d.type, d.headers, d.payload
        FROM d JOIN b ON b.part = d.part
    )
    SELECT
        count(*), CASE WHEN count(*) < most THEN pg_current_snapshot() ELSE previous END,
        count(*) FILTER (WHERE entire AND pg_visible_in_snapshot(d.xid, previous))
    INTO moved, seen, missed
    FROM d;
END
$$;

-- Append a message from a trigger or from another language; returns its id. The stream must be registered.
CREATE FUNCTION stoker.append(
    stream text, key text, payload bytea, type text, headers json DEFAULT NULL, raw boolean DEFAULT false,
    id uuid DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$
#variable_conflict use_column
DECLARE
    message uuid := coalesce(append.id, stoker.mint());
    target stoker.stream;
    large boolean := octet_length(append.payload) > 1500;
BEGIN
    IF append.key IS NULL OR octet_length(append.key) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'key: must be 1-512 bytes. Nothing was stored.' USING ERRCODE = '22023';
    ELSIF append.payload IS NULL OR octet_length(append.payload) > 65536 THEN
        RAISE EXCEPTION 'payload: must be at most 65536 bytes. Nothing was stored.' USING ERRCODE = '22023';
    ELSIF append.type IS NULL OR length(append.type) > 1024 OR append.type !~ '^[\x20-\x7e]+$' THEN
        RAISE EXCEPTION 'type: must be 1-1024 printable ASCII characters. Nothing was stored.' USING ERRCODE = '22023';
    ELSIF append.raw IS NULL THEN
        RAISE EXCEPTION 'raw: must be true or false. Nothing was stored.' USING ERRCODE = '22023';
    ELSIF octet_length(append.headers::text) > 8192 OR json_typeof(append.headers) <> 'object' OR EXISTS (
        SELECT 1 FROM json_each(CASE json_typeof(append.headers) WHEN 'object' THEN append.headers ELSE '{}' END) AS h
        WHERE json_typeof(h.value) <> 'string'
    ) THEN
        RAISE EXCEPTION 'headers: must be an object of texts, at most 8192 bytes. Nothing was stored.'
            USING ERRCODE = '22023';
    END IF;
    SELECT * INTO target FROM stoker.stream AS s WHERE s.name = append.stream;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stream % is not registered. Nothing was stored. Register it first.', append.stream
            USING ERRCODE = '22023';
    END IF;
    IF large THEN
        INSERT INTO stoker.body (id, payload) VALUES (message, append.payload);
    END IF;
    INSERT INTO stoker.incoming (created, id, sid, part, raw, key, type, headers, payload)
    VALUES (
        stoker.clock(), message, target.sid,
        get_byte(sha256(convert_to(append.key, 'UTF8')), 0) & (target.partitions - 1),
        append.raw, append.key, append.type, append.headers::text, CASE WHEN NOT large THEN append.payload END
    );
    RETURN message;
END
$$;
REVOKE ALL ON FUNCTION stoker.append(text, text, bytea, text, json, boolean, uuid) FROM PUBLIC;

-- The newest version of each cursor of a consumer, or of every consumer of a stream (`part`: of one partition): with the end
-- of the holder's own lease, what there is to deliver, the clock, and the end of the lease of the worker that is `asking`.
-- While the server was down no worker could renew: by its own clock no lease ends sooner than its own length after it
-- came up. `passed` is the position that counts instead of the stored one.
--
-- It is a function, so that one statement can number messages and then look: `moved`, what a step of the numbering has
-- answered, only says that the step comes first. As a volatile one it sees what the step has written.
CREATE FUNCTION stoker.cursors(
    moved integer, stream text, consumer text, part integer, asking text, clock bigint, passed bigint
) RETURNS TABLE (
    rid integer, name text, pid integer, turn bigint, "position" bigint, attempts integer, last_error text, holder text,
    token bigint, until bigint, due bigint, served bigint, size integer, failures integer, parked integer, paused boolean,
    holder_until bigint, now bigint, asking_until bigint, released boolean, letter_due boolean, oldest bigint
) LANGUAGE plpgsql VOLATILE AS
$$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH t AS MATERIALIZED (
        SELECT
            coalesce(cursors.clock, stoker.clock()) AS now,
            CASE
                WHEN cursors.clock IS NULL THEN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint
                ELSE 0
            END AS up
    )
    SELECT
        c.rid, k.name, c.pid, c.turn, c.position, c.attempts, c.last_error, c.holder, c.token, c.until, c.due, c.served,
        c.size, c.failures, p.count, k.paused, h.until, t.now, w.until, p.released, l.number IS NOT NULL, m.created
    FROM t
    CROSS JOIN stoker.stream AS s
    JOIN stoker.consumer AS k ON k.sid = s.sid
    CROSS JOIN LATERAL generate_series(0, s.partitions - 1) AS g (part)
    CROSS JOIN LATERAL (
        SELECT * FROM stoker.cursor AS v WHERE v.rid = k.rid AND v.pid = s.sid * 64 + g.part
        ORDER BY v.rid DESC, v.pid DESC, v.turn DESC LIMIT 1
    ) AS c
    CROSS JOIN LATERAL (
        SELECT count(*)::int AS count, coalesce(bool_or(p.released), false) AS released FROM stoker.parked AS p
        WHERE p.rid = c.rid AND p.pid = c.pid
    ) AS p
    LEFT JOIN LATERAL (
        SELECT greatest(h.until, t.up + h.lease) AS until FROM stoker.worker AS h WHERE h.name = c.holder
    ) AS h ON true
    LEFT JOIN LATERAL (
        SELECT greatest(w.until, t.up + w.lease) AS until FROM stoker.worker AS w WHERE w.name = cursors.asking
    ) AS w ON true
    LEFT JOIN LATERAL (
        SELECT l.number FROM stoker.letter AS l WHERE l.rid = c.rid AND l.pid = c.pid AND l.due
        ORDER BY l.rid, l.pid, l.number LIMIT 1
    ) AS l ON true
    LEFT JOIN LATERAL (
        SELECT m.created FROM stoker.message AS m WHERE m.pid = c.pid AND m.number > coalesce(cursors.passed, c.position)
        ORDER BY m.pid, m.number LIMIT 1
    ) AS m ON true
    WHERE
        s.name = cursors.stream AND (cursors.consumer IS NULL OR k.name = cursors.consumer)
        AND (cursors.part IS NULL OR g.part = cursors.part)
    ORDER BY k.name, g.part;
END
$$;

-- Why a payload is refused, in the words of `codec.json_check`; null: it is taken. The type `json` checks the syntax.
-- `enqueue` calls it, with a search path and a reading of backslashes that no session changes.
CREATE FUNCTION stoker.json_fault(given json) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS
$$
DECLARE
    written text := given::text;
    parts json[] := ARRAY[given];
    piece text;
BEGIN
    IF json_typeof(given) NOT IN ('object', 'array', 'null') THEN
        RETURN 'must be an object (keywords), a list (positionals) or null (no arguments)';
    END IF;
    IF position('\u' IN written) > 0 THEN
        written := replace(written, '\\', 'xx');  -- each backslash that is left begins an escape
        IF position('\u0000' IN written) > 0 THEN
            RETURN 'contains a NUL character';
        END IF;
        written := regexp_replace(written, '\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}', 'x', 'g');
        IF written ~ '\\u[dD][89a-fA-F]' THEN
            RETURN 'contains half of a surrogate pair';
        END IF;
    END IF;
    IF written ~ '[0-9]{200}|[eE][+]?[0-9]{3}' THEN  -- shorter numbers are in range
        written := regexp_replace(written, '"([^"\\]|\\.)*"', '', 'g');
        FOR piece IN SELECT m[1] FROM regexp_matches(written, '(-?[0-9][0-9.eE+-]*)', 'g') AS m LOOP
            IF piece ~ '^-?[0-9]+$' THEN
                IF length(piece) > 4300 THEN
                    RETURN 'contains an integer of more than 4300 characters';
                END IF;
            ELSIF piece ~ '[0-9]{200}|[eE][+]?[0-9]{3}' THEN
                BEGIN
                    PERFORM piece::double precision;
                EXCEPTION WHEN numeric_value_out_of_range THEN
                    RETURN 'contains a number beyond the range of a float';
                END;
            END IF;
        END LOOP;
    END IF;
    FOR level IN 1..64 LOOP
        SELECT pair.key INTO piece
        FROM unnest(parts) WITH ORDINALITY AS o (part, n)
        CROSS JOIN LATERAL json_each(CASE json_typeof(o.part) WHEN 'object' THEN o.part ELSE '{}' END) AS pair
        GROUP BY o.n, pair.key HAVING count(*) > 1 LIMIT 1;
        IF FOUND THEN
            RETURN format('has the key %L twice in one object', left(piece, 100));
        END IF;
        IF length(written) - length(translate(written, '[{', '')) <= level THEN
            RETURN NULL;  -- there are no more brackets than levels were seen
        END IF;
        SELECT array_agg(below.part) INTO parts FROM (
            SELECT pair.value FROM unnest(parts) AS o (part)
            CROSS JOIN LATERAL json_each(CASE json_typeof(o.part) WHEN 'object' THEN o.part ELSE '{}' END) AS pair
            UNION ALL
            SELECT item.value FROM unnest(parts) AS o (part)
            CROSS JOIN LATERAL json_array_elements(
                CASE json_typeof(o.part) WHEN 'array' THEN o.part ELSE '[]' END
            ) AS item
        ) AS below (part)
        WHERE json_typeof(below.part) IN ('object', 'array');
        IF parts IS NULL THEN
            RETURN NULL;
        END IF;
    END LOOP;
    RETURN 'is nested deeper than 64 levels';
END
$$;

-- For other languages and for triggers: stores a job as part of the caller's transaction and returns its id, or the
-- holder's when the key is held. The store's clock rules: there is a delay, but no instant. It runs with the rights of
-- its owner, so a role that may call it needs no others. It refuses payloads that drafts refuse, and ids that only
-- Stoker derives (`job.check_id`): they can be foreseen, and who takes one first would keep a schedule from its job.
CREATE FUNCTION stoker.enqueue(
    kind text,
    payload json DEFAULT '{}',
    queue text DEFAULT 'default',
    delay interval DEFAULT '0',
    priority integer DEFAULT 0,
    attempts integer DEFAULT 5,
    unique_key text DEFAULT NULL,
    unique_scope text DEFAULT 'kind',
    tenant text DEFAULT NULL,
    id uuid DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS
$$
#variable_conflict use_column
DECLARE
    job uuid := coalesce(enqueue.id, stoker.mint());
    moment bigint := stoker.clock();
    wait bigint := (extract(epoch FROM enqueue.delay) * 1000000)::bigint;
    held text := CASE unique_scope WHEN 'global' THEN '/' ELSE enqueue.kind || '/' END || unique_key;
    holder uuid;
    gone record;
BEGIN
    IF enqueue.kind IS NULL OR enqueue.kind !~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$' THEN
        RAISE EXCEPTION 'kind: must be 1-128 of letters, digits, _ . : -; got %. Nothing was stored.', enqueue.kind
            USING ERRCODE = '22023';
    ELSIF enqueue.queue IS NULL OR enqueue.queue !~ '^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$' THEN
        RAISE EXCEPTION 'queue: must be 1-128 of letters, digits, _ . : -; got %. Nothing was stored.', enqueue.queue
            USING ERRCODE = '22023';
    ELSIF enqueue.payload IS NULL OR octet_length(enqueue.payload::text) > 1048576 THEN
        RAISE EXCEPTION 'payload: must be JSON of at most 1048576 bytes. Nothing was stored.' USING ERRCODE = '22023';
    ELSIF stoker.json_fault(enqueue.payload) IS NOT NULL THEN
        RAISE EXCEPTION 'payload: %. Nothing was stored.', stoker.json_fault(enqueue.payload) USING ERRCODE = '22023';
    ELSIF coalesce(enqueue.priority NOT BETWEEN -1000 AND 1000, true) THEN
        RAISE EXCEPTION 'priority: must be between -1000 and 1000. Nothing was stored.' USING ERRCODE = '22023';
    ELSIF coalesce(enqueue.attempts NOT BETWEEN 1 AND 1000000, true) THEN
        RAISE EXCEPTION 'attempts: must be at least 1. Nothing was stored.' USING ERRCODE = '22023';
    ELSIF coalesce(wait NOT BETWEEN 0 AND 316224000000000, true) THEN
        RAISE EXCEPTION 'delay: must be between zero and ten years. Nothing was stored.' USING ERRCODE = '22023';
    ELSIF unique_scope NOT IN ('kind', 'global') OR octet_length(unique_key) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'unique_key: must be 1-512 bytes, its scope kind or global. Nothing was stored.'
            USING ERRCODE = '22023';
    ELSIF octet_length(enqueue.tenant) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'tenant: must be 1-512 bytes. Nothing was stored.' USING ERRCODE = '22023';
    ELSIF get_byte(uuid_send(enqueue.id), 6) >> 4 = 8 THEN
        RAISE EXCEPTION 'id: is a UUID of version 8, which Stoker keeps for jobs of schedules; got %. Nothing was stored.',
            enqueue.id USING ERRCODE = '22023';
    END IF;
    IF EXISTS (SELECT 1 FROM stoker.job AS j WHERE j.id = job) THEN
        RETURN job;
    END IF;
    WHILE held IS NOT NULL LOOP
        INSERT INTO stoker.dedupe (slot, id, firm) VALUES (held, job, false) ON CONFLICT (slot) DO NOTHING;
        EXIT WHEN FOUND;
        SELECT d.id INTO holder FROM stoker.dedupe AS d
        WHERE d.slot = held
            AND coalesce(d.until > moment, true)
            AND (d.firm OR NOT EXISTS (SELECT 1 FROM stoker.ready AS r WHERE r.id = d.id AND r.status = 2));
        IF FOUND THEN
            RETURN holder;
        END IF;
        DELETE FROM stoker.dedupe AS d WHERE d.slot = held AND d.until <= moment;
        CONTINUE WHEN FOUND;
        -- A holder that waits for a retry gives way; one that is claimed at this moment does not, and is met again.
        DELETE FROM stoker.ready AS r USING stoker.dedupe AS d
        WHERE d.slot = held AND r.id = d.id AND r.status = 2
        RETURNING r.* INTO gone;
        IF FOUND THEN
            UPDATE stoker.dedupe AS d SET id = job, firm = false WHERE d.slot = held;
            INSERT INTO stoker.done (id, finished, expires, token, started, attempts, status, settled, cancel, queue)
            SELECT
                gone.id, moment,
                moment + coalesce((SELECT q.keep_dead FROM stoker.queue AS q WHERE q.name = gone.queue), 2592000000000),
                gone.token, (SELECT p.started FROM stoker.past AS p WHERE p.id = gone.id), gone.attempts, 4,
                gone.settled, false, gone.queue;
            INSERT INTO stoker.failure (id, at, error)
            VALUES (gone.id, moment, 'superseded by a newer job with the same unique key');
            INSERT INTO stoker.delta (queue, kind, retrying, dead)
            SELECT gone.queue, j.kind, -1, 1 FROM stoker.job AS j WHERE j.id = gone.id;
            EXIT;
        END IF;
    END LOOP;
    INSERT INTO stoker.job (id, created, due, budget, priority, utraits, queue, kind, payload, ukey, tenant)
    VALUES (
        job, moment, moment + wait, enqueue.attempts, enqueue.priority,
        CASE WHEN held IS NOT NULL THEN CASE unique_scope WHEN 'global' THEN 6 ELSE 0 END END,
        enqueue.queue, enqueue.kind, enqueue.payload::text, unique_key, enqueue.tenant
    );
    INSERT INTO stoker.ready (due, token, id, attempts, priority, status, settled, past, queue)
    VALUES (moment + wait, 0, job, 0, enqueue.priority, 0, -1, false, enqueue.queue);
    INSERT INTO stoker.delta (queue, kind, pending, enqueued) VALUES (enqueue.queue, enqueue.kind, 1, 1);
    RETURN job;
END
$$;
REVOKE ALL ON FUNCTION
stoker.enqueue(text, json, text, interval, integer, integer, text, text, text, uuid) FROM PUBLIC;

-- Text as JSON; what is no JSON becomes a JSON string, so that one unreadable row does not spoil a query.
CREATE FUNCTION stoker.as_json(given text) RETURNS json LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS
$$
BEGIN
    RETURN given::json;
EXCEPTION WHEN others THEN
    RETURN to_json(given);
END
$$;

CREATE FUNCTION stoker.as_time(given bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT timestamptz 'epoch' + given * interval '1 microsecond' $$;

-- One row per job, for people: status as text, times as timestamps, payload, result and metadata as JSON. `max_attempts`
-- is what `attempts` may rise to. The engine does not read it.
CREATE VIEW stoker.jobs AS
SELECT
    j.id,
    j.kind,
    j.queue,
    CASE coalesce(r.status, d.status, 1)
        WHEN 0 THEN 'pending' WHEN 1 THEN 'running' WHEN 2 THEN 'retrying' WHEN 3 THEN 'done'
        WHEN 4 THEN 'dead' WHEN 5 THEN 'canceled' WHEN 6 THEN 'discarded' ELSE 'retried'
    END AS status,
    j.priority::integer AS priority,
    coalesce(r.attempts, d.attempts, l.attempts) AS attempts,
    coalesce(p.base, 0) + j.budget AS max_attempts,
    stoker.as_json(j.payload) AS payload,
    stoker.as_json(d.result) AS result,
    stoker.as_time(j.created) AS created_at,
    stoker.as_time(coalesce(r.due, p.due, j.due)) AS scheduled_at,
    stoker.as_time(coalesce(l.claimed, d.started, p.started)) AS started_at,
    stoker.as_time(d.finished) AS finished_at,
    stoker.as_time(d.expires) AS expires_at,
    CASE
        WHEN d.status IS DISTINCT FROM 3
        THEN (SELECT f.error FROM stoker.failure AS f WHERE f.id = j.id ORDER BY f.n DESC LIMIT 1)
    END AS last_error,
    j.tenant,
    j.ukey AS unique_key,
    l.worker,
    p.progress,
    coalesce((stoker.as_json(j.options) -> 'metadata')::jsonb, '{}') || coalesce(p.metadata, '{}') AS metadata
FROM stoker.job AS j
LEFT JOIN stoker.ready AS r ON r.id = j.id
LEFT JOIN stoker.done AS d ON d.id = j.id
LEFT JOIN stoker.past AS p ON p.id = j.id
LEFT JOIN (
    SELECT u.id, o.worker, o.claimed, coalesce(o.attempts[u.pos], 1) AS attempts
    FROM stoker.lease AS o CROSS JOIN LATERAL unnest(o.ids) WITH ORDINALITY AS u (id, pos)
    WHERE get_bit(o.open, u.pos::int - 1) = 1
) AS l ON l.id = j.id;
