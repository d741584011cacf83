-- name: record_chunk
INSERT INTO stoker.remembered (id, at) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING RETURNING 1

-- name: record_events
INSERT INTO stoker.event (first, last, low, high, count, body)
SELECT u.* FROM
    unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::uuid[], $5::int[], $6::bytea[])
    AS u (first, last, low, high, count, body)

-- name: record_points
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

-- name: points
SELECT queue, metric, bucket, count, sum, p50, p95, p99, max FROM stoker.point
WHERE bucket >= $1 AND bucket <= $2 AND metric = ANY($3::text[])
ORDER BY bucket, queue, metric

-- name: points_merged
SELECT
    queue,
    metric,
    $1 + (bucket - $1) / $4 * $4,
    sum(count)::bigint,
    sum(sum),
    sum(p50 * count) / greatest(sum(count), 1)::double precision,
    max(p95),
    max(p99),
    max(max)
FROM stoker.point
WHERE bucket >= $1 AND bucket <= $2 AND metric = ANY($3::text[])
GROUP BY 3, 1, 2
ORDER BY 3, 1, 2

-- name: points_summed
SELECT
    queue,
    metric,
    $1::bigint,
    sum(count)::bigint,
    sum(sum),
    sum(p50 * count) / greatest(sum(count), 1)::double precision,
    max(p95),
    max(p99),
    max(max)
FROM stoker.point
WHERE bucket >= $1 AND bucket <= $2 AND metric = ANY($3::text[])
GROUP BY queue, metric
ORDER BY queue, metric

-- name: points_of_queues
SELECT queue, metric, bucket, count, sum, p50, p95, p99, max
FROM unnest($4::text[]) AS q (of_queue)
CROSS JOIN unnest($3::text[]) AS m (of_metric)
CROSS JOIN LATERAL (
    SELECT * FROM stoker.point
    WHERE queue = of_queue AND metric = of_metric AND bucket >= $1 AND bucket <= $2
) AS p
ORDER BY bucket, queue, metric

-- name: points_of_queues_merged
SELECT
    queue,
    metric,
    $1 + (bucket - $1) / $5 * $5,
    sum(count)::bigint,
    sum(sum),
    sum(p50 * count) / greatest(sum(count), 1)::double precision,
    max(p95),
    max(p99),
    max(max)
FROM unnest($4::text[]) AS q (of_queue)
CROSS JOIN unnest($3::text[]) AS m (of_metric)
CROSS JOIN LATERAL (
    SELECT * FROM stoker.point
    WHERE queue = of_queue AND metric = of_metric AND bucket >= $1 AND bucket <= $2
) AS p
GROUP BY 3, 1, 2
ORDER BY 3, 1, 2

-- name: events
-- A page of blocks after one of them, by the beginning of a block, before $3 and with events since $4; of a job, if one
-- is given, those that may hold events of it. Says of each whether a job between its jobs was removed.
SELECT
    b.n, b.first, b.last, b.body,
    EXISTS (SELECT 1 FROM stoker.removed AS r WHERE r.job BETWEEN b.low AND b.high)
FROM stoker.event AS b
WHERE
    (b.first, b.n) > ($1::bigint, $2::bigint) AND b.first < $3 AND b.last >= $4
    AND (
        $6::uuid IS NULL
        OR (b.low <= $6 AND b.high >= $6 AND position(uuid_send($6) IN b.body) > 0)
    )
ORDER BY b.first, b.n
LIMIT $5

-- name: events_latest
-- A page of blocks before one of them, latest first, with the events of removed jobs, since $3; otherwise as `events`.
SELECT b.n, b.first, b.last, b.body, false
FROM stoker.event AS b
WHERE
    (b.first, b.n) < ($1::bigint, $2::bigint) AND b.first >= $3 AND b.last >= $4
    AND (
        $6::uuid IS NULL
        OR (b.low <= $6 AND b.high >= $6 AND position(uuid_send($6) IN b.body) > 0)
    )
ORDER BY b.first DESC, b.n DESC
LIMIT $5

-- name: events_removed
SELECT job, block, at FROM stoker.removed WHERE job = ANY($1::uuid[])

-- name: events_late
-- Minutes before $1 of blocks that were stored after the first one of $1 or later. The sums keep the planner on the index
-- that finds few blocks: those of a time by it, and those stored since by their number.
SELECT DISTINCT b.first / 60000000 AS minute
FROM stoker.event AS b
WHERE b.n > (SELECT min(f.n + 0) FROM stoker.event AS f WHERE f.first >= $1) AND b.first + 0 < $1
ORDER BY minute
