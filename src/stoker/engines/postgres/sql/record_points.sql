-- In the order of the key, so that two recorders never wait for one another in a circle.
INSERT INTO stoker.point (bucket, queue, metric, count, sum, p50, p95, p99, max)
SELECT u.* FROM
    unnest(
        $1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::float8[], $6::float8[], $7::float8[], $8::float8[],
        $9::float8[]
    ) AS u (bucket, queue, metric, count, sum, p50, p95, p99, max)
ORDER BY u.bucket, u.queue COLLATE "C", u.metric COLLATE "C"
ON CONFLICT (bucket, queue, metric) DO UPDATE
SET count = excluded.count, sum = excluded.sum, p50 = excluded.p50, p95 = excluded.p95, p99 = excluded.p99,
    max = excluded.max
