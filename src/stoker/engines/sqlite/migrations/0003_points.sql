-- A point holds six values: how many, their sum, three percentiles and the maximum. An event of a completed job also
-- tells the time since its enqueue.

DROP TABLE stoker_points;
CREATE TABLE stoker_points (
    bucket INTEGER NOT NULL,
    queue TEXT NOT NULL,
    metric TEXT NOT NULL,
    count INTEGER NOT NULL,
    sum REAL NOT NULL,
    p50 REAL NOT NULL,
    p95 REAL NOT NULL,
    p99 REAL NOT NULL,
    max REAL NOT NULL,
    PRIMARY KEY (bucket, queue, metric)
) WITHOUT ROWID;

ALTER TABLE stoker_events ADD COLUMN total INTEGER;
