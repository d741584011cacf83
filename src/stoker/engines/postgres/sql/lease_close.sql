-- Take running jobs from their workers, one mask for each lease, which is locked. A lease without an open bit is deleted.
WITH m AS MATERIALIZED (
    SELECT l.id, l.open & ~m.mask::varbit AS open
    FROM unnest($1::bigint[], $2::text[]) AS m (id, mask)
    JOIN stoker.lease AS l ON l.id = m.id AND l.id = ANY($1::bigint[])
), x AS (
    UPDATE stoker.lease AS l SET open = m.open FROM m WHERE l.id = m.id AND bit_count(m.open) > 0
)
DELETE FROM stoker.lease AS l USING m WHERE l.id = m.id AND bit_count(m.open) = 0
