-- The rows that may wait for a signal (`model.steps.asks`): questions are found beside any number of sleeping jobs.
CREATE INDEX stoker_steps_asks ON stoker_steps (seq)
WHERE state = 2 AND value IS NOT NULL AND substr(name, 1, 6) <> 'calls:' AND substr(value, 1, 8) <> x'7b226b696e64223a';
