-- The clock, for a transaction that rather fails than waits longer than $1 milliseconds for another one's lock.
SELECT stoker.clock(), set_config('lock_timeout', $1::text, true)
