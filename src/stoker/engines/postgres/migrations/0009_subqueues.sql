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

-- Jobs that were put back, among which are those that kept their slot: few among many waiting jobs.
CREATE INDEX ready_put_back ON stoker.ready (queue) WHERE past AND settled IN (0, 2);

-- How many claims of a queue its subqueues served.
CREATE TABLE stoker.subqueue_round (
    queue text COLLATE "C" PRIMARY KEY,
    claims bigint NOT NULL
) WITH (fillfactor = 50);

CREATE VIEW stoker.subqueue_line AS
SELECT queue, queue || '/' || name AS line FROM stoker.subqueue
UNION
SELECT queue, queue || '/' || name AS line FROM stoker.subqueue_log;
