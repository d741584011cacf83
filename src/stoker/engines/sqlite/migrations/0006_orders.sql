-- Lists in the order of a time. Done jobs are found by their end through the index that also finds those that expire:
-- it groups them by how long they are kept, of which there are few values, so a success is written to no further index.

DROP INDEX stoker_done_expires;
CREATE INDEX stoker_done_kept ON stoker_done (expires - finished, finished) WHERE status = 3;
CREATE INDEX stoker_done_expires ON stoker_done (expires) WHERE status > 3;
CREATE INDEX stoker_done_ended ON stoker_done (status, finished, id, qid) WHERE status > 3;
CREATE INDEX stoker_ready_due ON stoker_ready (due, id) WHERE status = 2;
