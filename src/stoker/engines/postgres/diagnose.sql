-- name: diagnose_tables
-- The tables of the schema: rows as the server estimates them, bytes, and when a vacuum is due.
SELECT
    c.relname::text,
    coalesce(s.n_live_tup, 0)::bigint,
    coalesce(s.n_dead_tup, 0)::bigint,
    pg_total_relation_size(c.oid)::bigint,
    coalesce((SELECT o.option_value::boolean FROM pg_options_to_table(c.reloptions) AS o
        WHERE o.option_name = 'autovacuum_enabled'), true),
    (
        coalesce(
            (SELECT o.option_value FROM pg_options_to_table(c.reloptions) AS o
                WHERE o.option_name = 'autovacuum_vacuum_threshold'),
            current_setting('autovacuum_vacuum_threshold')
        )::float8
        + coalesce(
            (SELECT o.option_value FROM pg_options_to_table(c.reloptions) AS o
                WHERE o.option_name = 'autovacuum_vacuum_scale_factor'),
            current_setting('autovacuum_vacuum_scale_factor')
        )::float8 * greatest(c.reltuples, 0)
    )::bigint
FROM pg_catalog.pg_class AS c
LEFT JOIN pg_catalog.pg_stat_user_tables AS s ON s.relid = c.oid
WHERE
    c.relnamespace = (SELECT relnamespace FROM pg_catalog.pg_class WHERE oid = 'stoker.job'::regclass)
    AND c.relkind = 'r'
ORDER BY c.relname

-- name: diagnose_indexes
-- The indexes of the schema, and whether the server uses them.
SELECT c.relname::text, i.indisvalid AND i.indisready
FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
WHERE c.relnamespace = (SELECT relnamespace FROM pg_catalog.pg_class WHERE oid = 'stoker.job'::regclass)

-- name: diagnose_slots
-- Replication slots, and how many bytes of the log each of them keeps.
SELECT
    slot_name::text, active,
    coalesce(pg_wal_lsn_diff(
        CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn
    ), 0)::bigint
FROM pg_catalog.pg_replication_slots
WHERE NOT temporary
ORDER BY slot_name

-- name: diagnose_sequences
-- The sequences of the schema beside what its tables hold, of at most $1 rows each: sequence, its last number (0: none
-- yet), the largest number found. Where the table has an index for it, the largest of all.
SELECT s.sequence::text, coalesce(pg_sequence_last_value(s.sequence::regclass), 0), coalesce(s.largest, 0)
FROM (
    VALUES
    ('stoker.lease_number', (SELECT max(id) FROM stoker.lease)),
    ('stoker.failure_n_seq', (SELECT max(x.n) FROM (SELECT n FROM stoker.failure LIMIT $1) AS x)),
    ('stoker.trouble_n_seq', (SELECT max(x.n) FROM (SELECT n FROM stoker.trouble LIMIT $1) AS x)),
    ('stoker.group_change_n_seq', (SELECT max(n) FROM stoker.group_change)),
    ('stoker.event_n_seq', (SELECT max(n) FROM stoker.event)),
    ('stoker.audit_n_seq', (SELECT max(x.n) FROM (SELECT n FROM stoker.audit LIMIT $1) AS x)),
    ('stoker.subqueue_log_n_seq', (SELECT max(x.n) FROM (SELECT n FROM stoker.subqueue_log LIMIT $1) AS x)),
    ('stoker.stream_sid_seq', (SELECT max(sid) FROM stoker.stream)),
    ('stoker.consumer_rid_seq', (SELECT max(rid) FROM stoker.consumer)),
    ('stoker.incoming_n_seq', (SELECT max(x.n) FROM (SELECT n FROM stoker.incoming LIMIT $1) AS x))
) AS s (sequence, largest)

-- name: diagnose_connections
-- Connections of clients, and how many there may be for roles that are not superusers.
SELECT
    (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend')::int,
    (
        current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true), '0')::int
    )

-- name: diagnose_counts
-- Counters by queue beside what is really there, counted up to $1: what, queue (NULL: all), counter, found.
WITH n AS MATERIALIZED (
    SELECT
        queue, sum(pending) AS pending, sum(running) AS running, sum(retrying) AS retrying, sum(done) AS done,
        sum(dead) AS dead, sum(canceled) AS canceled, sum(discarded) AS discarded, sum(retried) AS retried
    FROM (
        SELECT queue, pending, running, retrying, done, dead, canceled, discarded, retried FROM stoker.tally
        UNION ALL
        SELECT
            queue, coalesce(pending, 0), coalesce(running, 0), coalesce(retrying, 0), coalesce(done, 0),
            coalesce(dead, 0), coalesce(canceled, 0), coalesce(discarded, 0), coalesce(retried, 0)
        FROM stoker.delta
    ) AS x
    GROUP BY queue
)
SELECT
    'waiting', n.queue, (n.pending + n.retrying)::bigint,
    (
        SELECT count(*) FROM (
            SELECT 1 FROM stoker.ready AS r WHERE r.queue = n.queue
            UNION ALL
            SELECT 1 FROM stoker.subqueue_line AS s JOIN stoker.ready AS r ON r.queue = s.line WHERE s.queue = n.queue
            LIMIT $1
        ) AS x
    )
FROM n
UNION ALL
SELECT
    'running', n.queue, n.running::bigint,
    coalesce((SELECT sum(bit_count(l.open)) FROM stoker.lease AS l WHERE l.queue = n.queue), 0)::bigint
FROM n
UNION ALL
SELECT
    s.status, n.queue, s.counter::bigint,
    (
        SELECT count(*) FROM (
            SELECT 1 FROM stoker.done AS d
            WHERE d.queue = n.queue AND d.status = s.code AND d.status <> 3 LIMIT $1
        ) AS x
    )
FROM n CROSS JOIN LATERAL (
    VALUES ('dead', 4, n.dead), ('canceled', 5, n.canceled), ('discarded', 6, n.discarded), ('retried', 7, n.retried)
) AS s (status, code, counter)
UNION ALL
SELECT
    'retrying', NULL, coalesce(sum(n.retrying), 0)::bigint,
    (SELECT count(*) FROM (SELECT 1 FROM stoker.ready AS r WHERE r.status = 2 LIMIT $1) AS x)
FROM n
UNION ALL
SELECT
    'finished', NULL, coalesce(sum(n.done + n.dead + n.canceled + n.discarded + n.retried), 0)::bigint,
    (SELECT count(*) FROM (SELECT 1 FROM stoker.done LIMIT $1) AS x)
FROM n

-- name: diagnose_keys
-- Of the first $1 unique keys: how many are held by a job that is finished or gone, and are not kept for a time.
SELECT count(*)
FROM (SELECT id, until FROM stoker.dedupe ORDER BY slot LIMIT $1) AS k
LEFT JOIN LATERAL (SELECT 1 AS found FROM stoker.done AS d WHERE d.id = k.id LIMIT 1) AS d ON true
LEFT JOIN LATERAL (SELECT 1 AS found FROM stoker.job AS j WHERE j.id = k.id LIMIT 1) AS j ON true
WHERE k.until IS NULL AND (d.found IS NOT NULL OR j.found IS NULL)

-- name: diagnose_placeless
-- Of the first and the last $1 jobs those that neither wait nor run nor are finished.
WITH candidate AS MATERIALIZED (
    (SELECT id FROM stoker.job ORDER BY id LIMIT $1)
    UNION
    (SELECT id FROM stoker.job ORDER BY id DESC LIMIT $1)
), rest AS MATERIALIZED (
    SELECT s.id
    FROM candidate AS s
    WHERE
        NOT EXISTS (SELECT 1 FROM stoker.ready AS r WHERE r.id = s.id)
        AND NOT EXISTS (SELECT 1 FROM stoker.done AS d WHERE d.id = s.id)
)
SELECT id FROM rest
EXCEPT
SELECT u.id
FROM stoker.lease AS l CROSS JOIN unnest(l.ids) WITH ORDINALITY AS u (id, pos)
WHERE get_bit(l.open, u.pos::int - 1) = 1
LIMIT 20

-- name: diagnose_bodiless
-- Of the first $1 waiting jobs, and of running ones, those whose body is gone.
SELECT x.id
FROM (
    (SELECT r.id FROM stoker.ready AS r LIMIT $1)
    UNION ALL
    (
        SELECT u.id
        FROM stoker.lease AS l CROSS JOIN unnest(l.ids) WITH ORDINALITY AS u (id, pos)
        WHERE get_bit(l.open, u.pos::int - 1) = 1
        LIMIT $1
    )
) AS x
WHERE NOT EXISTS (SELECT 1 FROM stoker.job AS j WHERE j.id = x.id)
LIMIT 20

-- name: diagnose_groups
-- The last $1 groups and their callbacks.
SELECT id, callbacks FROM stoker.job_group ORDER BY id DESC LIMIT $1
