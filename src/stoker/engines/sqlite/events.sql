-- name: record_chunk
INSERT INTO stoker_remembered (id, at) VALUES (?1, ?2) ON CONFLICT (id) DO NOTHING RETURNING 1

-- name: record_events
INSERT INTO stoker_events (first, last, low, high, count, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)

-- name: record_point
INSERT INTO stoker_points (bucket, queue, metric, count, sum, p50, p95, p99, max)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (bucket, queue, metric) DO UPDATE
SET count = excluded.count, sum = excluded.sum, p50 = excluded.p50, p95 = excluded.p95, p99 = excluded.p99,
    max = excluded.max

-- name: points
SELECT queue, metric, bucket, count, sum, p50, p95, p99, max FROM stoker_points
WHERE bucket BETWEEN ?1 AND ?2 AND metric IN (SELECT value FROM json_each(?3))
ORDER BY bucket, queue, metric

-- name: points_merged
SELECT
    queue,
    metric,
    ?1 + (bucket - ?1) / ?4 * ?4,
    sum(count),
    sum(sum),
    sum(p50 * count) / max(sum(count), 1),
    max(p95),
    max(p99),
    max(max)
FROM stoker_points
WHERE bucket BETWEEN ?1 AND ?2 AND metric IN (SELECT value FROM json_each(?3))
GROUP BY 3, 1, 2
ORDER BY 3, 1, 2

-- name: points_summed
SELECT
    queue,
    metric,
    ?1,
    sum(count),
    sum(sum),
    sum(p50 * count) / max(sum(count), 1),
    max(p95),
    max(p99),
    max(max)
FROM stoker_points
WHERE bucket BETWEEN ?1 AND ?2 AND metric IN (SELECT value FROM json_each(?3))
GROUP BY queue, metric
ORDER BY queue, metric

-- name: points_of_queues
SELECT queue, metric, bucket, count, sum, p50, p95, p99, max
FROM json_each(?4) AS q CROSS JOIN json_each(?3) AS m CROSS JOIN stoker_points
WHERE queue = q.value AND metric = m.value AND bucket BETWEEN ?1 AND ?2
ORDER BY bucket, queue, metric

-- name: points_of_queues_merged
SELECT
    queue,
    metric,
    ?1 + (bucket - ?1) / ?5 * ?5,
    sum(count),
    sum(sum),
    sum(p50 * count) / max(sum(count), 1),
    max(p95),
    max(p99),
    max(max)
FROM json_each(?4) AS q CROSS JOIN json_each(?3) AS m CROSS JOIN stoker_points
WHERE queue = q.value AND metric = m.value AND bucket BETWEEN ?1 AND ?2
GROUP BY 3, 1, 2
ORDER BY 3, 1, 2

-- name: events
-- A page of blocks after one of them, by the beginning of a block, before ?3 and with events since ?4; of a job, if one
-- is given, those that may hold events of it. Says of each whether a job between its jobs was removed.
SELECT
    b.n, b.first, b.last, b.body,
    EXISTS (SELECT 1 FROM stoker_removed AS r WHERE r.job BETWEEN b.low AND b.high)
FROM stoker_events AS b
WHERE
    (b.first, b.n) > (?1, ?2) AND b.first < ?3 AND b.last >= ?4
    AND (?6 IS NULL OR (b.low <= ?6 AND b.high >= ?6 AND instr(b.body, ?6) > 0))
ORDER BY b.first, b.n
LIMIT ?5

-- name: events_latest
-- A page of blocks before one of them, latest first, with the events of removed jobs, since ?3; otherwise as `events`.
SELECT b.n, b.first, b.last, b.body, 0
FROM stoker_events AS b
WHERE
    (b.first, b.n) < (?1, ?2) AND b.first >= ?3 AND b.last >= ?4
    AND (?6 IS NULL OR (b.low <= ?6 AND b.high >= ?6 AND instr(b.body, ?6) > 0))
ORDER BY b.first DESC, b.n DESC
LIMIT ?5

-- name: events_removed
-- What was removed of some jobs, whose ids are given one after the other.
WITH RECURSIVE place (i) AS (
    SELECT 1
    UNION ALL
    SELECT i + 16 FROM place WHERE i + 16 < length(?1)
)
SELECT r.job, r.block, r.at FROM place CROSS JOIN stoker_removed AS r ON r.job = substr(?1, i, 16)

-- name: events_late
-- Minutes before ?1 of blocks that were stored after the first one of ?1 or later. The sums keep the planner on the index
-- that finds few blocks: those of a time by it, and those stored since by their number.
SELECT DISTINCT b.first / 60000000 AS minute
FROM stoker_events AS b
WHERE b.n > (SELECT min(f.n + 0) FROM stoker_events AS f WHERE f.first >= ?1) AND b.first + 0 < ?1
ORDER BY minute
