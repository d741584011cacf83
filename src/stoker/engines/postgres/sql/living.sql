-- Every worker with the end of its lease. While the server was down no worker could renew: by its own clock no lease ends
-- sooner than its own length after it came up.
SELECT
    name,
    CASE
        WHEN $1::bigint IS NOT NULL THEN until
        ELSE greatest(until, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint + lease)
    END
FROM stoker.worker
