-- Replication slots, and how many bytes of the log each of them keeps.
SELECT
    slot_name::text, active,
    coalesce(pg_wal_lsn_diff(
        CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn
    ), 0)::bigint
FROM pg_catalog.pg_replication_slots
WHERE NOT temporary
ORDER BY slot_name
