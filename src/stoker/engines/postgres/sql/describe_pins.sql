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
