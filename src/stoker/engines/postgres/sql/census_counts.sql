-- All numbers by queue and kind: what is folded and what is not yet. The latter is added up first, as small numbers.
SELECT
    queue, kind, sum(pending)::bigint, sum(running)::bigint, sum(retrying)::bigint, sum(done)::bigint,
    sum(dead)::bigint, sum(canceled)::bigint, sum(discarded)::bigint, sum(retried)::bigint, sum(enqueued)::bigint,
    sum(completed)::bigint, sum(retries)::bigint, sum(failed)::bigint, sum(cancels)::bigint
FROM (
    SELECT * FROM stoker.tally
    UNION ALL
    SELECT
        queue, kind, sum(pending), sum(running), sum(retrying), sum(done), sum(dead), sum(canceled), sum(discarded),
        sum(retried), sum(enqueued), sum(completed), sum(retries), sum(failed), sum(cancels)
    FROM stoker.delta GROUP BY queue, kind
) AS n
GROUP BY queue, kind
ORDER BY queue, kind
