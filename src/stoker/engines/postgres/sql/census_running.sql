-- Per queue: the earliest claim that runs, the first lease and how many there are, from lease $1 on (`CensusBounds`).
SELECT queue, min(claimed), min(id), count(*) FROM stoker.lease WHERE id >= $1::bigint GROUP BY queue
