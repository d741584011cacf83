-- Points of a few queues, or of all together, are read without passing over those of every queue.

CREATE INDEX point_of_queue ON stoker.point (queue, metric, bucket);
