SELECT pg_advisory_xact_lock(hashtext('stoker.sequence'), $1::int)
