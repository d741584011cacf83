-- A history keeps its newest entries.
DELETE FROM stoker.failure AS f USING unnest($1::uuid[]) AS u (id)
WHERE
    f.id = u.id AND f.attempt IS NOT NULL
    AND f.n <= (
        SELECT o.n FROM stoker.failure AS o WHERE o.id = u.id AND o.attempt IS NOT NULL
        ORDER BY o.n DESC OFFSET $2::int LIMIT 1
    )
