-- Minutes before $1 of blocks that were stored after the first one of $1 or later. The sums keep the planner on the index
-- that finds few blocks: those of a time by it, and those stored since by their number.
SELECT DISTINCT b.first / 60000000 AS minute
FROM stoker.event AS b
WHERE b.n > (SELECT min(f.n + 0) FROM stoker.event AS f WHERE f.first >= $1) AND b.first + 0 < $1
ORDER BY minute
