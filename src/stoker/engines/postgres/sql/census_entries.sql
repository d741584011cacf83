-- How many index entries of waiting jobs and leases this session has read, dead ones too. Only differences within one
-- transaction mean anything.
SELECT
    pg_stat_get_xact_tuples_returned('stoker.ready_pkey'::regclass)
    + pg_stat_get_xact_tuples_returned('stoker.lease_pkey'::regclass)
