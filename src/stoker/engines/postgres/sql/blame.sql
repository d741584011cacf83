-- The last error of jobs, without an attempt: no run failed.
INSERT INTO stoker.failure (id, at, error) SELECT u.id, $2::bigint, $3::text FROM unnest($1::uuid[]) AS u (id)
