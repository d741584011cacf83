-- The clock, for a transaction whose loss in a crash of the server does no harm: it need not wait for the disk.
SELECT stoker.clock(), set_config('synchronous_commit', 'off', true)
