-- Where a user's handle is, whether our tables are there, and how late it is.
SELECT
    current_database()::text, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
    to_regclass('stoker.stoker_migration') IS NOT NULL, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint
