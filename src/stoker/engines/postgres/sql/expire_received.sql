DELETE FROM stoker.received WHERE ctid = ANY(ARRAY(
    SELECT r.ctid FROM stoker.received AS r WHERE r.until <= $1::bigint ORDER BY r.until LIMIT $2::int
))
RETURNING 1
