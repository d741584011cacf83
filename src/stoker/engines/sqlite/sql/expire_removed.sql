-- Removals of jobs when no block that may hold events of them is left, and none can come any more; some of them.
DELETE FROM stoker_removed WHERE job IN (
    SELECT r.job FROM stoker_removed AS r
    WHERE
        r.block < coalesce((SELECT min(n) FROM stoker_events), 9223372036854775807)
        AND r.at < min(?1, coalesce((SELECT min(first) FROM stoker_events), 9223372036854775807))
    ORDER BY r.block
    LIMIT ?2
)
