-- Workers under whom nothing is stored become unknown, and so do names that were never seen.
WITH gone AS (
    DELETE FROM stoker.worker AS w
    WHERE
        w.name = ANY($2::text[])
        AND NOT EXISTS (SELECT 1 FROM stoker.lease AS l WHERE l.worker = w.name)
    RETURNING w.name
)
INSERT INTO stoker.retired (name, at)
SELECT name, $1::bigint FROM gone UNION SELECT s.name, $1::bigint FROM unnest($3::text[]) AS s (name)
ON CONFLICT (name) DO NOTHING
