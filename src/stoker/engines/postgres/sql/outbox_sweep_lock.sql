-- What a new consumer starts behind must not be deleted at the same moment.
SELECT pg_advisory_xact_lock(hashtext('stoker.swept'), $1::int)
