-- How many index entries of waiting jobs and leases this session has read, dead ones too, and the newest lease's number.
-- Of the former only differences within one transaction mean anything.
-- The rest of the transaction does without bitmaps. A server that takes a table for nearly empty, because it is when
-- dead entries do not count, would choose them, read whole ranges and sort, where one entry is asked for.
SELECT
    pg_stat_get_xact_tuples_returned('stoker.ready_pkey'::regclass)
    + pg_stat_get_xact_tuples_returned('stoker.lease_pkey'::regclass),
    coalesce(pg_sequence_last_value('stoker.lease_number'::regclass), 1),
    set_config('enable_bitmapscan', 'off', true)
