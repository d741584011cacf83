-- Removals of jobs when no block that may hold events of them is left, and none can come any more.
DELETE FROM stoker.removed WHERE job = ANY(ARRAY(
    SELECT r.job FROM stoker.removed AS r
    WHERE
        r.block < coalesce((SELECT n FROM stoker.event WHERE n > 0 ORDER BY n LIMIT 1), 9223372036854775807)
        AND r.at < least($1, (SELECT first FROM stoker.event WHERE first < $1 ORDER BY first LIMIT 1))
    ORDER BY r.block
    LIMIT $2 FOR UPDATE SKIP LOCKED
))
