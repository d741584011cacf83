-- Who holds keys now, in a snapshot of its own: what the statement before saw may be superseded by now.
SELECT d.slot, d.id, d.firm, (SELECT r.status FROM stoker.ready AS r WHERE r.id = d.id) AS status
FROM stoker.dedupe AS d WHERE d.slot = ANY($1::text[])
