-- Lists in the order of a time. A success pays for no tree: the ends of done jobs are summed up per range of pages, and a
-- page of the latest ones reads the ranges that were written last.

CREATE INDEX done_finished ON stoker.done USING brin (finished) WITH (pages_per_range = 32, autosummarize = on);
CREATE INDEX done_ended ON stoker.done (status, finished, id) WHERE status <> 3;
CREATE INDEX ready_due ON stoker.ready (due, id) WHERE status = 2;
