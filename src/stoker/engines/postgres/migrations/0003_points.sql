-- A point holds six values: how many, their sum, three percentiles and the maximum. An event of a completed job also
-- tells the time since its enqueue.

DROP TABLE stoker.point;
CREATE TABLE stoker.point (
    bucket bigint NOT NULL,
    count bigint NOT NULL,
    sum double precision NOT NULL,
    p50 double precision NOT NULL,
    p95 double precision NOT NULL,
    p99 double precision NOT NULL,
    max double precision NOT NULL,
    queue text COLLATE "C" NOT NULL,
    metric text COLLATE "C" NOT NULL,
    PRIMARY KEY (bucket, queue, metric)
);

ALTER TABLE stoker.event ADD COLUMN total bigint;
