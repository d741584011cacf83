-- Places of done jobs that ended at $4 or later, behind one ($1, $2), latest end first, at most $3.
SELECT d.finished, d.id FROM stoker.done AS d
WHERE d.finished >= $4 AND d.finished <= $1::bigint AND d.status = 3 AND (d.finished, d.id) < ($1::bigint, $2::uuid)
ORDER BY d.finished DESC, d.id DESC LIMIT $3
