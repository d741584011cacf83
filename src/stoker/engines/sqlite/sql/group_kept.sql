-- When those of some jobs expire that are stored; NULL: it has not ended. Their ids are given one after the other.
WITH RECURSIVE place (i) AS (
    SELECT 1
    UNION ALL
    SELECT i + 16 FROM place WHERE i + 16 < length(?1)
)
SELECT d.expires
FROM place
CROSS JOIN stoker_body AS b ON b.id = substr(?1, i, 16)
LEFT JOIN stoker_done AS d ON d.id = b.id
