-- What a block asks and writes in one round trip with the begin and the commit of its transaction. Such a command takes no
-- values and returns no rows: a claim that is lost is an error, which keeps the commit from being reached. Both are about
-- claims with a lease of their own, which exists as long as the job runs under it. Their plans are made once, perhaps while
-- the tables are empty: they must not learn from that.
CREATE FUNCTION stoker.check_claim(lease bigint, worker text, token bigint) RETURNS void LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS
$$
BEGIN
    PERFORM FROM stoker.lease AS l
    WHERE l.id = check_claim.lease AND l.worker = check_claim.worker AND l.token = check_claim.token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the claim is no longer its worker''s' USING ERRCODE = 'SLOST';
    END IF;
END
$$;

-- A success with its result, as `settle_done` writes it for many: `Record.settle`.
CREATE FUNCTION stoker.settle_claim(
    clock bigint, lease bigint, worker text, token bigint, job uuid, kind text, attempts integer, keep bigint,
    keep_done bigint, result text
) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS
$$
DECLARE
    moment bigint := coalesce(clock, stoker.clock());
    ended stoker.lease;
BEGIN
    DELETE FROM stoker.lease AS l
    WHERE l.id = settle_claim.lease AND l.worker = settle_claim.worker AND l.token = settle_claim.token
    RETURNING l.* INTO ended;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the claim is no longer its worker''s' USING ERRCODE = 'SLOST';
    END IF;
    INSERT INTO stoker.done (id, finished, expires, token, started, attempts, status, settled, cancel, queue, result)
    VALUES (
        settle_claim.job, moment,
        moment + coalesce(
            settle_claim.keep, (SELECT q.keep_done FROM stoker.queue AS q WHERE q.name = ended.queue),
            settle_claim.keep_done
        ),
        ended.token, ended.claimed, settle_claim.attempts, 3, 3,
        coalesce(get_bit(ended.cancel, 0) = 1, false), ended.queue, settle_claim.result
    );
    INSERT INTO stoker.delta (queue, kind, running, done, completed)
    VALUES (ended.queue, settle_claim.kind, -1, 1, 1);
    IF (
        SELECT v.error FROM stoker.trouble AS v WHERE v.kind = settle_claim.kind ORDER BY v.n DESC LIMIT 1
    ) IS NOT NULL THEN
        INSERT INTO stoker.trouble (kind) VALUES (settle_claim.kind);
    END IF;
END
$$;
