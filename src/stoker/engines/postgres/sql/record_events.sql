-- Events, but those from before an operator deleted their job. Answers how many were written.
WITH e AS (
    INSERT INTO stoker.event (at, type, job, queue, kind, attempt, duration, total)
    SELECT u.at, u.type, u.job, u.queue, u.kind, u.attempt, u.duration, u.total
    FROM
        unnest($1::bigint[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::int[], $7::bigint[], $8::bigint[])
        AS u (at, type, job, queue, kind, attempt, duration, total)
    WHERE NOT EXISTS (SELECT 1 FROM stoker.remembered AS r WHERE r.id = u.job AND r.at >= u.at)
    RETURNING 1
)
SELECT count(*) FROM e
