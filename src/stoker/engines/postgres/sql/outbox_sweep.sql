-- Delete messages of a partition behind $2 up to $3, at most $4, and none behind the first that is younger than $5.
WITH a AS MATERIALIZED (
    SELECT m.number, m.created FROM stoker.message AS m
    WHERE m.pid = $1::int AND m.number > $2::bigint AND m.number <= $3::bigint
    ORDER BY m.pid, m.number LIMIT $4::int
), l AS MATERIALIZED (
    SELECT coalesce(
        (SELECT min(a.number) - 1 FROM a WHERE a.created > $5::bigint), (SELECT max(a.number) FROM a), $2::bigint
    ) AS last
), d AS (
    DELETE FROM stoker.message AS m USING l
    WHERE m.pid = $1::int AND m.number > $2::bigint AND m.number <= l.last
    RETURNING m.id, m.payload IS NULL AS aside
), b AS (
    DELETE FROM stoker.body WHERE id = ANY(ARRAY(SELECT d.id FROM d WHERE d.aside))
), s AS (
    INSERT INTO stoker.swept (pid, number) SELECT $1::int, l.last FROM l WHERE l.last > $2::bigint
    ON CONFLICT (pid) DO UPDATE SET number = excluded.number
)
SELECT count(*)::int FROM d
