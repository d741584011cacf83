-- Under whom anything is stored, name by name from the index: also those that were reaped while a claim was on its way.
WITH RECURSIVE o (name) AS (
    (SELECT worker FROM stoker.lease ORDER BY worker LIMIT 1)
    UNION ALL
    SELECT (SELECT l.worker FROM stoker.lease AS l WHERE l.worker > o.name ORDER BY l.worker LIMIT 1)
    FROM o WHERE o.name IS NOT NULL
)
SELECT name FROM o WHERE name IS NOT NULL
