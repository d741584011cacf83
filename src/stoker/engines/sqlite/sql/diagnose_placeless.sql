-- Of the first and the last ?1 jobs those that neither wait nor run nor are finished.
WITH some AS (
    SELECT id FROM (SELECT id FROM stoker_body ORDER BY id LIMIT ?1)
    UNION
    SELECT id FROM (SELECT id FROM stoker_body ORDER BY id DESC LIMIT ?1)
)
SELECT r.id
FROM some CROSS JOIN stoker_records AS r ON r.id = some.id
WHERE
    r.status IS NULL
    AND r.seq NOT IN (
        SELECT n.seq FROM stoker_running AS n JOIN stoker_workers AS w ON w.wid = n.wid WHERE w.lease_until IS NOT NULL
    )
LIMIT 20
