-- Per queue: the earliest claim that runs, the first lease and how many there are, from lease $1 on (`CensusBounds`).
-- The order keeps the server to the index of ids: that of workers has the ids too, and all of it would be read.
SELECT queue, min(claimed), min(id), count(*)
FROM (SELECT queue, claimed, id FROM stoker.lease WHERE id >= $1::bigint ORDER BY id OFFSET 0) AS l
GROUP BY queue
