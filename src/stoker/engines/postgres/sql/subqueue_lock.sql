-- One claim of a divided queue at a time. Inserts and settlements never take this lock.
SELECT pg_advisory_xact_lock(hashtextextended('stoker.' || 'subqueue:' || $1::text, 0))
