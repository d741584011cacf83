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
