-- Rows are found name by name, in the only transaction that may change them now: it has the queue's lock.
DELETE FROM stoker.subqueue WHERE ctid = ANY(ARRAY(
    SELECT s.ctid FROM unnest($2::text[]) AS u (name)
    CROSS JOIN LATERAL (SELECT ctid FROM stoker.subqueue WHERE queue = $1 AND name = u.name OFFSET 0) AS s
))
