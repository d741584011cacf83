-- The sequences of the schema beside what its tables hold, of at most $1 rows each: sequence, its last number (0: none
-- yet), the largest number found. Where the table has an index for it, the largest of all.
SELECT s.sequence::text, coalesce(pg_sequence_last_value(s.sequence::regclass), 0), coalesce(s.largest, 0)
FROM (
    VALUES
    ('stoker.lease_number', (SELECT max(id) FROM stoker.lease)),
    ('stoker.failure_n_seq', (SELECT max(x.n) FROM (SELECT n FROM stoker.failure LIMIT $1) AS x)),
    ('stoker.trouble_n_seq', (SELECT max(x.n) FROM (SELECT n FROM stoker.trouble LIMIT $1) AS x)),
    ('stoker.group_change_n_seq', (SELECT max(n) FROM stoker.group_change)),
    ('stoker.event_n_seq', (SELECT max(n) FROM stoker.event)),
    ('stoker.audit_n_seq', (SELECT max(x.n) FROM (SELECT n FROM stoker.audit LIMIT $1) AS x)),
    ('stoker.subqueue_log_n_seq', (SELECT max(x.n) FROM (SELECT n FROM stoker.subqueue_log LIMIT $1) AS x)),
    ('stoker.stream_sid_seq', (SELECT max(sid) FROM stoker.stream)),
    ('stoker.consumer_rid_seq', (SELECT max(rid) FROM stoker.consumer)),
    ('stoker.incoming_n_seq', (SELECT max(x.n) FROM (SELECT n FROM stoker.incoming LIMIT $1) AS x))
) AS s (sequence, largest)
