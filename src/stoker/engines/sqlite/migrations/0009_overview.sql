-- What an overview reads. Points of a few queues, or of all together, are found without passing over those of every
-- queue; the newest unsuccessful jobs of all queues without merging a list of each queue.

CREATE INDEX stoker_points_of_queue ON stoker_points (queue, metric, bucket);
CREATE INDEX stoker_done_newest ON stoker_done (status, id) WHERE status > 3;
