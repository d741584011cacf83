-- A view for people, which stays as it is. The engine does not read it.

-- Text as JSON; what is no JSON becomes a JSON string, so that one unreadable row does not spoil a query.
CREATE FUNCTION stoker.as_json(given text) RETURNS json LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS
$$
BEGIN
    RETURN given::json;
EXCEPTION WHEN others THEN
    RETURN to_json(given);
END
$$;

CREATE FUNCTION stoker.as_time(given bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT timestamptz 'epoch' + given * interval '1 microsecond' $$;

-- One row per job: status as text, times as timestamps, payload, result and metadata as JSON. `max_attempts` is what
-- `attempts` may rise to.
CREATE VIEW stoker.jobs AS
SELECT
    j.id,
    j.kind,
    j.queue,
    CASE coalesce(r.status, d.status, 1)
        WHEN 0 THEN 'pending' WHEN 1 THEN 'running' WHEN 2 THEN 'retrying' WHEN 3 THEN 'done'
        WHEN 4 THEN 'dead' WHEN 5 THEN 'canceled' WHEN 6 THEN 'discarded' ELSE 'retried'
    END AS status,
    j.priority::integer AS priority,
    coalesce(r.attempts, d.attempts, l.attempts) AS attempts,
    coalesce(p.base, 0) + j.budget AS max_attempts,
    stoker.as_json(j.payload) AS payload,
    stoker.as_json(d.result) AS result,
    stoker.as_time(j.created) AS created_at,
    stoker.as_time(coalesce(r.due, p.due, j.due)) AS scheduled_at,
    stoker.as_time(coalesce(l.claimed, d.started, p.started)) AS started_at,
    stoker.as_time(d.finished) AS finished_at,
    stoker.as_time(d.expires) AS expires_at,
    CASE
        WHEN d.status IS DISTINCT FROM 3
        THEN (SELECT f.error FROM stoker.failure AS f WHERE f.id = j.id ORDER BY f.n DESC LIMIT 1)
    END AS last_error,
    j.tenant,
    j.ukey AS unique_key,
    l.worker,
    p.progress,
    coalesce((stoker.as_json(j.options) -> 'metadata')::jsonb, '{}') || coalesce(p.metadata, '{}') AS metadata
FROM stoker.job AS j
LEFT JOIN stoker.ready AS r ON r.id = j.id
LEFT JOIN stoker.done AS d ON d.id = j.id
LEFT JOIN stoker.past AS p ON p.id = j.id
LEFT JOIN (
    SELECT u.id, o.worker, o.claimed, coalesce(o.attempts[u.pos], 1) AS attempts
    FROM stoker.lease AS o CROSS JOIN LATERAL unnest(o.ids) WITH ORDINALITY AS u (id, pos)
    WHERE get_bit(o.open, u.pos::int - 1) = 1
) AS l ON l.id = j.id;
