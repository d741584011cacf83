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
