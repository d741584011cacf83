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
