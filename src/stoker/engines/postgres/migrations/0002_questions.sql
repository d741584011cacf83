-- The rows that may wait for a signal (`model.steps.asks`): questions are found beside any number of sleeping jobs.
CREATE INDEX step_asks ON stoker.step (id)
WHERE state = 2 AND value IS NOT NULL AND substr(name, 1, 6) <> 'calls:' AND substr(value, 1, 8) <> '{"kind":';
