-- Hide the events of a job that goes: those that are stored, and those up to an instant that come later. Nothing to hide in
-- a store without events, unless some may come later.
INSERT INTO stoker_removed (job, block, at)
SELECT ?1, coalesce((SELECT max(n) FROM stoker_events), 0), ?2
WHERE ?2 >= 0 OR EXISTS (SELECT 1 FROM stoker_events WHERE n > 0)
ON CONFLICT (job) DO UPDATE SET block = excluded.block, at = max(at, excluded.at)
