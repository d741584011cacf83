-- name: now
SELECT stoker.clock()

-- name: now_lax
-- The clock, for a transaction whose loss in a crash of the server does no harm: it need not wait for the disk.
SELECT stoker.clock(), set_config('synchronous_commit', 'off', true)

-- name: now_hasty
-- The clock, for a transaction that rather fails than waits longer than $1 milliseconds for another one's lock.
SELECT stoker.clock(), set_config('lock_timeout', $1::text, true)
