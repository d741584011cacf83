-- Read payloads that are stored aside, in the order of $1, as long as they fit into $3 bytes; the first one is always
-- read. $2: bytes of other payloads before each of them. One that is missing is NULL.
SELECT x.payload
FROM (
    SELECT
        u.ord, b.payload,
        u.before + sum(coalesce(octet_length(b.payload), 0)) OVER (ORDER BY u.ord ROWS UNBOUNDED PRECEDING) AS total
    FROM unnest($1::uuid[], $2::bigint[]) WITH ORDINALITY AS u (id, before, ord)
    LEFT JOIN stoker.body AS b ON b.id = u.id
) AS x
WHERE x.ord = 1 OR x.total <= $3::bigint
ORDER BY x.ord
