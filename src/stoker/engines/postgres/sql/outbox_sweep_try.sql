SELECT pg_try_advisory_xact_lock(hashtext('stoker.swept'), $1::int)
