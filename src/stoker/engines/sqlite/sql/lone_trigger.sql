-- An id that is stored already and a clock behind the store's are errors here, and nothing happens.
CREATE TEMP TRIGGER stoker_lone_put
INSTEAD OF INSERT ON stoker_lone
BEGIN
    SELECT RAISE(ABORT, 'the clock is behind') FROM stoker_clock WHERE high > NEW.created;

    INSERT INTO stoker_body (seq, id, qid, priority, due, kind, payload, budget, created, tenant, options)
    VALUES (
        NEW.seq, NEW.id, NEW.qid, NEW.priority, NEW.due, NEW.kind, NEW.payload, NEW.budget, NEW.created, NEW.tenant,
        NEW.options
    );

    INSERT INTO stoker_ready (qid, priority, due, id, seq, attempts, token, status, past)
    VALUES (NEW.qid, NEW.priority, NEW.due, NEW.id, NEW.seq, 0, 0, 0, 0);

    INSERT INTO stoker_counts (qid, kind, what, n)
    VALUES (NEW.qid, NEW.kind, 0, 1), (NEW.qid, NEW.kind, 8, 1)
    ON CONFLICT (qid, kind, what) DO UPDATE SET n = n + excluded.n;

    UPDATE stoker_clock SET high = NEW.created WHERE high < NEW.mark_before;
END
