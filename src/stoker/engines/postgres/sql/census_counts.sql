-- All numbers by queue and kind: what is folded and what is not yet.
SELECT
    queue, kind, sum(pending)::bigint, sum(running)::bigint, sum(retrying)::bigint, sum(done)::bigint,
    sum(dead)::bigint, sum(canceled)::bigint, sum(discarded)::bigint, sum(retried)::bigint, sum(enqueued)::bigint,
    sum(completed)::bigint, sum(retries)::bigint, sum(failed)::bigint, sum(cancels)::bigint
FROM (SELECT * FROM stoker.tally UNION ALL SELECT * FROM stoker.delta) AS n
GROUP BY queue, kind
ORDER BY queue, kind
