-- In the order of the key, so that two recorders never wait for one another in a circle.
INSERT INTO stoker.point (bucket, queue, metric, value)
SELECT u.* FROM unnest($1::bigint[], $2::text[], $3::text[], $4::float8[]) AS u (bucket, queue, metric, value)
ORDER BY u.bucket, u.queue COLLATE "C", u.metric COLLATE "C"
ON CONFLICT (bucket, queue, metric) DO UPDATE SET value = excluded.value
