-- name: describe_server
-- Settings in force in this session, and the state of the server.
SELECT name, setting FROM pg_catalog.pg_settings
WHERE name IN (
    'server_version', 'server_version_num', 'fsync', 'full_page_writes', 'synchronous_commit',
    'synchronous_standby_names', 'wal_level', 'max_connections', 'autovacuum'
)
UNION ALL
SELECT 'recovery', CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE 'primary' END
UNION ALL
SELECT
    'sees_all_sessions',
    CASE
        WHEN
            pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
            OR current_setting('is_superuser') = 'on'
        THEN 'yes' ELSE 'no'
    END
UNION ALL
SELECT 'standbys', count(*)::text FROM pg_catalog.pg_stat_replication

-- name: describe_sizes
SELECT c.relname, pg_total_relation_size(c.oid)
FROM pg_catalog.pg_class AS c
WHERE
    c.relnamespace = (SELECT relnamespace FROM pg_catalog.pg_class WHERE oid = 'stoker.job'::regclass)
    AND c.relkind IN ('r', 'p', 'm')
ORDER BY pg_total_relation_size(c.oid) DESC

-- name: describe_pins
-- Who holds a snapshot or has written without an end: the oldest first. Sessions of the last moment are just at work.
SELECT what, name, detail, behind, seconds FROM (
    SELECT
        CASE WHEN a.backend_type = 'walsender' THEN 'standby' ELSE 'session' END AS what,
        a.pid::text AS name,
        concat_ws(', ', nullif(a.application_name, ''), a.usename, a.state) AS detail,
        greatest(age(a.backend_xmin), age(a.backend_xid))::bigint AS behind,
        extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, a.backend_start))::float8 AS seconds
    FROM pg_catalog.pg_stat_activity AS a
    WHERE
        a.pid <> pg_backend_pid()
        AND coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL
        AND coalesce(a.xact_start, a.backend_start) < clock_timestamp() - interval '1 second'
        AND (a.datname = current_database() OR a.datname IS NULL)
    UNION ALL
    SELECT
        'slot', s.slot_name::text,
        concat_ws(', ', s.slot_type, CASE WHEN s.active THEN 'active' ELSE 'inactive' END),
        greatest(age(s.xmin), age(s.catalog_xmin))::bigint,
        NULL
    FROM pg_catalog.pg_replication_slots AS s
    WHERE coalesce(s.xmin, s.catalog_xmin) IS NOT NULL
    UNION ALL
    SELECT
        'prepared transaction', quote_literal(p.gid), p.owner::text, age(p.transaction)::bigint,
        extract(epoch FROM clock_timestamp() - p.prepared)::float8
    FROM pg_catalog.pg_prepared_xacts AS p
    WHERE p.database = current_database()
) AS held
ORDER BY behind DESC
