-- Everything the engine stores. Every name is written with the schema `stoker`; the engine puts the real one in its
-- place. Instants are integer microseconds, statuses small integers in the order of model.job.Status: 0 pending,
-- 1 running, 2 retrying, 3 done, 4 dead, 5 canceled, 6 discarded, 7 retried.
--
-- A job is in exactly one of three places, in every snapshot: a row of `ready`, an open bit of a `lease`, a row of
-- `done`. Its body is in `job` wherever it is. Nothing refers to anything by a foreign key, and no row is shared by
-- two transactions that have nothing to do with each other.

CREATE FUNCTION stoker.clock() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS
$$ SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint $$;

-- What the doors write once and never again; only an operator's change or a replacing draft rewrites it.
CREATE TABLE stoker.job (
    id uuid PRIMARY KEY,
    created bigint NOT NULL,
    due bigint NOT NULL,
    budget integer NOT NULL,
    priority smallint NOT NULL,
    utraits smallint,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    payload text NOT NULL,
    ukey text COLLATE "C",
    tenant text COLLATE "C",
    options text
);
CREATE INDEX job_key ON stoker.job (ukey, id) WHERE ukey IS NOT NULL;

-- Jobs that wait, in the order claims take them. `token` is that of the last claim, `settled` the status its
-- settlement asked for (-1: none), `past` whether there is a row in `past`.
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

-- Finished jobs. The second index is for the lists of people; success does not pay for it.
CREATE TABLE stoker.done (
    id uuid PRIMARY KEY,
    finished bigint NOT NULL,
    expires bigint NOT NULL,
    token bigint NOT NULL,
    started bigint,
    attempts integer NOT NULL,
    status smallint NOT NULL CHECK (status BETWEEN 3 AND 7),
    settled smallint NOT NULL,
    cancel boolean NOT NULL,
    queue text COLLATE "C" NOT NULL,
    result text,
    successor uuid
);
CREATE INDEX done_listed ON stoker.done (queue, status, id) WHERE status <> 3;

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

-- The newest is the job's last error. Without an attempt it was no run's error (canceled, superseded) and no history.
CREATE TABLE stoker.failure (
    id uuid NOT NULL,
    n bigint GENERATED ALWAYS AS IDENTITY,
    at bigint NOT NULL,
    attempt integer,
    error text NOT NULL,
    PRIMARY KEY (id, n)
);

-- Who holds a unique key, from insert to finish. A holder that waits for a retry gives way unless it is firm.
CREATE TABLE stoker.dedupe (
    slot text COLLATE "C" PRIMARY KEY,
    id uuid NOT NULL,
    firm boolean NOT NULL
) WITH (fillfactor = 70);

-- A queue's settings and what its gates need. `paused_until` is NULL where only a call resumes the queue; a queue
-- without a rate has NULL from `rate_n` to `refilled`. `declared` is what an app's code declared last.
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
    declared text
) WITH (fillfactor = 50);

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

-- How many jobs of a queue and kind are in each status now, and five totals since the store was made. Doors only
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

CREATE TABLE stoker.budget (
    name text COLLATE "C" PRIMARY KEY,
    rate_n double precision NOT NULL,
    rate_per double precision NOT NULL,
    rate_burst double precision NOT NULL,
    tokens double precision NOT NULL,
    refilled bigint NOT NULL,
    declared text
) WITH (fillfactor = 50);

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
    members uuid[] NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX job_group_unsealed ON stoker.job_group (touched) WHERE NOT sealed;
CREATE INDEX job_group_complete ON stoker.job_group (id)
    WHERE sealed AND closed IS NULL AND total <= done + dead + canceled;
CREATE INDEX job_group_expires ON stoker.job_group (expires) WHERE expires IS NOT NULL;

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

CREATE TABLE stoker.event (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    duration bigint,
    job uuid NOT NULL,
    attempt integer NOT NULL,
    type text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL
);
CREATE INDEX event_at ON stoker.event (at);
CREATE INDEX event_job ON stoker.event (job);

-- Chunks of events that were written and jobs that were deleted: what comes of them later is not written. Kept for as
-- long as model.events.REMEMBERED says.
CREATE TABLE stoker.remembered (
    id uuid PRIMARY KEY,
    at bigint NOT NULL
);
CREATE INDEX remembered_at ON stoker.remembered (at);

CREATE TABLE stoker.point (
    bucket bigint NOT NULL,
    value double precision NOT NULL,
    queue text COLLATE "C" NOT NULL,
    metric text COLLATE "C" NOT NULL,
    PRIMARY KEY (bucket, queue, metric)
);

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

-- The first door for other languages and for triggers: stores a job as part of the caller's transaction and answers its
-- id, or the holder's when the key is held. The store's clock rules: there is a delay, but no instant. It runs with the
-- rights of its owner, so a role that may call it needs no others.
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
) RETURNS uuid LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
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
    END IF;
    IF EXISTS (SELECT 1 FROM stoker.job AS j WHERE j.id = job) THEN
        RETURN job;
    END IF;
    WHILE held IS NOT NULL LOOP
        INSERT INTO stoker.dedupe (slot, id, firm) VALUES (held, job, false) ON CONFLICT (slot) DO NOTHING;
        EXIT WHEN FOUND;
        SELECT d.id INTO holder FROM stoker.dedupe AS d
        WHERE d.slot = held
            AND (d.firm OR NOT EXISTS (SELECT 1 FROM stoker.ready AS r WHERE r.id = d.id AND r.status = 2));
        IF FOUND THEN
            RETURN holder;
        END IF;
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
