-- Hide the events of jobs that go: those that are stored, and those up to an instant that come later. Nothing to hide in
-- a store without events, unless some may come later.
INSERT INTO stoker.removed (job, block, at)
SELECT u.job, coalesce(b.n, 0), $2::bigint
FROM unnest($1::uuid[]) AS u (job)
LEFT JOIN (SELECT n FROM stoker.event WHERE n > 0 ORDER BY n DESC LIMIT 1) AS b ON true
WHERE b.n IS NOT NULL OR $2 >= 0
ON CONFLICT (job) DO UPDATE SET block = excluded.block, at = greatest(removed.at, excluded.at)
