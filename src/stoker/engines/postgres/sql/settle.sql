-- Claims end, each only while its bit is open under exactly its worker and token. `soft` are the positions whose end a
-- request to cancel forbids, `hard` the others. Answers what was open and what was applied, lease by lease; a lease
-- that is not in the answer is not that worker's under that token. When a job is due again: `lifecycle.due_again`.
WITH t AS MATERIALIZED (
    SELECT coalesce($1::bigint, stoker.clock()) AS now
), l AS MATERIALIZED (
    SELECT
        m.ord, s.id, s.token, s.queue, s.claimed, s.open, s.cancel, q.keep_done, q.keep_dead,
        s.open & (m.hard::varbit | (m.soft::varbit & ~coalesce(s.cancel, s.open # s.open))) AS eff
    FROM
        unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[])
            WITH ORDINALITY AS m (lease, worker, token, soft, hard, ord)
    JOIN stoker.lease AS s
        ON s.id = m.lease AND s.id = ANY($2::bigint[]) AND s.worker || '' = m.worker AND s.token = m.token
    LEFT JOIN stoker.queue AS q ON q.name = s.queue
    ORDER BY s.id FOR UPDATE OF s
), x AS (
    UPDATE stoker.lease AS s SET open = l.open & ~l.eff FROM l
    WHERE s.id = l.id AND bit_count(l.eff) > 0 AND bit_count(l.open & ~l.eff) > 0
), y AS (
    DELETE FROM stoker.lease AS s USING l WHERE s.id = l.id AND bit_count(l.open & ~l.eff) = 0
), f AS MATERIALIZED (
    SELECT
        u.*, l.token, l.queue, l.claimed, l.keep_done, l.keep_dead, t.now,
        coalesce(get_bit(l.cancel, u.pos) = 1, false) AS cancel
    FROM
        t, l,
        unnest(
            $7::int[], $8::int[], $9::uuid[], $10::smallint[], $11::text[], $12::int[], $13::int[], $14::bigint[],
            $15::smallint[], $16::bigint[], $17::text[], $18::text[], $19::text[], $20::boolean[], $21::boolean[],
            $22::int[], $23::int[], $24::text[], $25::bigint[]
        ) WITH ORDINALITY AS u (
            ord, pos, id, status, kind, attempt, attempts, after, priority, keep, result, error, slot, erased, marked,
            crashes, throttles, metadata, due, n
        )
    WHERE u.ord = l.ord AND get_bit(l.eff, u.pos) = 1
), i AS (
    INSERT INTO stoker.done (id, finished, expires, token, started, attempts, status, settled, cancel, queue, result)
    SELECT
        id, now,
        now + CASE WHEN status = 3 THEN coalesce(keep, keep_done, $26::bigint) ELSE coalesce(keep_dead, $27::bigint) END,
        token, claimed, attempts, status, status, cancel, queue, result
    FROM f WHERE status >= 3 AND NOT erased
), b AS (
    INSERT INTO stoker.ready (due, token, id, attempts, priority, status, settled, past, queue)
    SELECT coalesce(due, now + after), token, id, attempts, priority, status, status, true, queue FROM f WHERE status < 3
), o AS (
    INSERT INTO stoker.past AS o (id, due, started, crashes, throttles, metadata)
    SELECT id, coalesce(due, now + after), claimed, crashes, throttles, metadata::jsonb FROM f WHERE marked AND NOT erased
    ON CONFLICT (id) DO UPDATE SET
        due = coalesce(excluded.due, o.due), started = excluded.started,
        crashes = excluded.crashes, throttles = excluded.throttles,
        metadata = CASE WHEN excluded.metadata IS NULL THEN o.metadata
            ELSE coalesce(o.metadata, '{}') || excluded.metadata END
), k AS (
    DELETE FROM stoker.dedupe WHERE ctid = ANY(ARRAY(
        SELECT d.ctid FROM f, stoker.dedupe AS d
        WHERE f.status >= 3 AND d.slot = f.slot AND d.id = f.id ORDER BY d.slot FOR UPDATE OF d
    ))
), e AS (
    INSERT INTO stoker.failure (id, at, attempt, error)
    SELECT id, now, attempt, error FROM f WHERE error IS NOT NULL AND NOT erased ORDER BY n
), ej AS (
    DELETE FROM stoker.job WHERE id IN (SELECT f.id FROM f WHERE f.erased)
), ep AS (
    DELETE FROM stoker.past WHERE id IN (SELECT f.id FROM f WHERE f.erased)
), ef AS (
    DELETE FROM stoker.failure WHERE id IN (SELECT f.id FROM f WHERE f.erased)
), c AS (
    INSERT INTO stoker.delta (
        queue, kind, pending, running, retrying, done, dead, canceled, completed, retries, failed, cancels
    )
    SELECT
        queue, kind, nullif(count(*) FILTER (WHERE status = 0), 0), -count(*),
        nullif(count(*) FILTER (WHERE status = 2), 0), nullif(count(*) FILTER (WHERE status = 3 AND NOT erased), 0),
        nullif(count(*) FILTER (WHERE status = 4), 0), nullif(count(*) FILTER (WHERE status = 5), 0),
        nullif(count(*) FILTER (WHERE status = 3), 0), nullif(count(*) FILTER (WHERE status = 2), 0),
        nullif(count(*) FILTER (WHERE status = 4), 0), nullif(count(*) FILTER (WHERE status = 5), 0)
    FROM f GROUP BY queue, kind
), w AS (
    SELECT DISTINCT ON (kind) kind, CASE WHEN status <> 3 THEN error END AS error
    FROM f WHERE status = 3 OR (status IN (2, 4) AND error IS NOT NULL) ORDER BY kind, n DESC
), tr AS (
    INSERT INTO stoker.trouble (kind, error)
    SELECT w.kind, w.error FROM w
    WHERE w.error IS NOT NULL OR (
        SELECT v.error FROM stoker.trouble AS v WHERE v.kind = w.kind ORDER BY v.n DESC LIMIT 1
    ) IS NOT NULL
)
SELECT ord, open::text, eff::text FROM l
