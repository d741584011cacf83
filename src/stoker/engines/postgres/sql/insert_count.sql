-- Counts what a transaction is about to store; answers the clock.
WITH c AS (
    INSERT INTO stoker.delta (queue, kind, pending, enqueued)
    SELECT u.queue, u.kind, u.n, u.n FROM unnest($1::text[], $2::text[], $3::int[]) AS u (queue, kind, n)
)
SELECT stoker.clock()
