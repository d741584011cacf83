-- What was removed of some jobs, whose ids are given one after the other.
WITH RECURSIVE place (i) AS (
    SELECT 1
    UNION ALL
    SELECT i + 16 FROM place WHERE i + 16 < length(?1)
)
SELECT r.job, r.block, r.at FROM place CROSS JOIN stoker_removed AS r ON r.job = substr(?1, i, 16)
