INSERT INTO stoker_points (bucket, queue, metric, count, sum, p50, p95, p99, max)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (bucket, queue, metric) DO UPDATE
SET count = excluded.count, sum = excluded.sum, p50 = excluded.p50, p95 = excluded.p95, p99 = excluded.p99,
    max = excluded.max
