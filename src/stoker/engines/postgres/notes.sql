-- name: note
-- What running handlers note, each only while its bit is open: `Record.note`.
WITH ok AS MATERIALIZED (
    SELECT u.ord, u.id, u.progress, u.metadata::jsonb AS metadata, u.log::jsonb AS log
    FROM
        unnest(
            $1::bigint[], $2::text[], $3::bigint[], $4::int[], $5::uuid[], $6::double precision[], $7::text[],
            $8::text[]
        ) WITH ORDINALITY AS u (lease, worker, token, pos, id, progress, metadata, log, ord)
    JOIN stoker.lease AS l
        ON l.id = u.lease AND l.id = ANY($1::bigint[]) AND l.worker || '' = u.worker AND l.token = u.token
    WHERE get_bit(l.open, u.pos) = 1
    ORDER BY l.id FOR SHARE OF l
), w AS (
    INSERT INTO stoker.past AS p (id, progress, metadata, log)
    SELECT id, progress, metadata, log FROM ok ORDER BY id
    ON CONFLICT (id) DO UPDATE SET
        progress = coalesce(excluded.progress, p.progress),
        metadata = CASE WHEN excluded.metadata IS NULL THEN p.metadata
            ELSE coalesce(p.metadata, '{}') || excluded.metadata END,
        log = CASE WHEN excluded.log IS NULL THEN p.log ELSE (
            SELECT jsonb_agg(z.line ORDER BY z.n) FROM (
                SELECT a.line, a.n
                FROM jsonb_array_elements(coalesce(p.log, '[]') || excluded.log) WITH ORDINALITY AS a (line, n)
                ORDER BY a.n DESC LIMIT $9::int
            ) AS z
        ) END
)
SELECT ord FROM ok
