-- The finished jobs nearest to their expiry. This reads them all.
SELECT id FROM stoker.done ORDER BY expires, id LIMIT $1
