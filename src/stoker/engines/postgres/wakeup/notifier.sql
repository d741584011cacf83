-- name: notify
-- Tell who listens. It need not survive a crash, so it does not wait for the disk.
SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)
