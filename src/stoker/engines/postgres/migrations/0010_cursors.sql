-- The newest version of each cursor of a consumer, or of every consumer of a stream (`part`: of one partition): with the end
-- of the holder's own lease, what there is to deliver, the clock, and the end of the lease of the worker that is `asking`.
-- While the server was down no worker could renew: by its own clock no lease ends sooner than its own length after it
-- came up. `passed` is the position that counts instead of the stored one.
--
-- It is a function, so that one statement can number messages and then look: `moved`, what a step of the numbering has
-- answered, only says that the step comes first. As a volatile one it sees what the step has written.
CREATE FUNCTION stoker.cursors(
    moved integer, stream text, consumer text, part integer, asking text, clock bigint, passed bigint
) RETURNS TABLE (
    rid integer, name text, pid integer, turn bigint, "position" bigint, attempts integer, last_error text, holder text,
    token bigint, until bigint, due bigint, served bigint, size integer, failures integer, parked integer, paused boolean,
    holder_until bigint, now bigint, asking_until bigint, released boolean, letter_due boolean, oldest bigint
) LANGUAGE plpgsql VOLATILE AS
$$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH t AS MATERIALIZED (
        SELECT
            coalesce(cursors.clock, stoker.clock()) AS now,
            CASE
                WHEN cursors.clock IS NULL THEN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint
                ELSE 0
            END AS up
    )
    SELECT
        c.rid, k.name, c.pid, c.turn, c.position, c.attempts, c.last_error, c.holder, c.token, c.until, c.due, c.served,
        c.size, c.failures, p.count, k.paused, h.until, t.now, w.until, p.released, l.number IS NOT NULL, m.created
    FROM t
    CROSS JOIN stoker.stream AS s
    JOIN stoker.consumer AS k ON k.sid = s.sid
    CROSS JOIN LATERAL generate_series(0, s.partitions - 1) AS g (part)
    CROSS JOIN LATERAL (
        SELECT * FROM stoker.cursor AS v WHERE v.rid = k.rid AND v.pid = s.sid * 64 + g.part
        ORDER BY v.rid DESC, v.pid DESC, v.turn DESC LIMIT 1
    ) AS c
    CROSS JOIN LATERAL (
        SELECT count(*)::int AS count, coalesce(bool_or(p.released), false) AS released FROM stoker.parked AS p
        WHERE p.rid = c.rid AND p.pid = c.pid
    ) AS p
    LEFT JOIN LATERAL (
        SELECT greatest(h.until, t.up + h.lease) AS until FROM stoker.worker AS h WHERE h.name = c.holder
    ) AS h ON true
    LEFT JOIN LATERAL (
        SELECT greatest(w.until, t.up + w.lease) AS until FROM stoker.worker AS w WHERE w.name = cursors.asking
    ) AS w ON true
    LEFT JOIN LATERAL (
        SELECT l.number FROM stoker.letter AS l WHERE l.rid = c.rid AND l.pid = c.pid AND l.due
        ORDER BY l.rid, l.pid, l.number LIMIT 1
    ) AS l ON true
    LEFT JOIN LATERAL (
        SELECT m.created FROM stoker.message AS m WHERE m.pid = c.pid AND m.number > coalesce(cursors.passed, c.position)
        ORDER BY m.pid, m.number LIMIT 1
    ) AS m ON true
    WHERE
        s.name = cursors.stream AND (cursors.consumer IS NULL OR k.name = cursors.consumer)
        AND (cursors.part IS NULL OR g.part = cursors.part)
    ORDER BY k.name, g.part;
END
$$;
