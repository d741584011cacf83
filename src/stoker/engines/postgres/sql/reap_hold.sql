-- Holds workers that are about to be reaped, unless they have renewed since, or another worker reaps them.
SELECT name FROM stoker.worker
WHERE name = ANY($1::text[]) AND (until <= $2::bigint OR name = ANY($3::text[]))
ORDER BY name FOR UPDATE SKIP LOCKED
