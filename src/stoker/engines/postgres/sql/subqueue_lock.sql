-- The clock, and the lock of a divided queue: one claim at a time, which waits at most $2 milliseconds. Inserts and
-- settlements never take this lock.
WITH t AS MATERIALIZED (SELECT stoker.clock() AS now, set_config('lock_timeout', $2::text, true) AS hasty)
SELECT t.now, pg_advisory_xact_lock(hashtextextended('stoker.' || 'subqueue:' || $1::text, 0)) IS NULL
FROM t WHERE t.hasty IS NOT NULL
