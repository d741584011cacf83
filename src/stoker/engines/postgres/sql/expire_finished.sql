SELECT coalesce(sum(done + dead + canceled + discarded + retried), 0)::bigint
FROM (
    SELECT done, dead, canceled, discarded, retried FROM stoker.tally
    UNION ALL
    SELECT coalesce(done, 0), coalesce(dead, 0), coalesce(canceled, 0), coalesce(discarded, 0), coalesce(retried, 0)
    FROM stoker.delta
) AS n
