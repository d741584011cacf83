-- Those of the jobs that are stored and neither wait nor run nor are finished.
SELECT j.id
FROM stoker.job AS j
WHERE
    j.id = ANY($1::uuid[])
    AND NOT EXISTS (SELECT 1 FROM stoker.ready AS r WHERE r.id = j.id)
    AND NOT EXISTS (SELECT 1 FROM stoker.done AS d WHERE d.id = j.id)
    AND NOT EXISTS (
        SELECT 1 FROM stoker.lease AS l
        WHERE l.ids @> ARRAY[j.id] AND get_bit(l.open, array_position(l.ids, j.id) - 1) = 1
    )
