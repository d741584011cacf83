-- name: audit_put
INSERT INTO stoker.audit (at, entry) VALUES ($1, $2)

-- name: audit
SELECT entry FROM stoker.audit
WHERE at >= $1 AND at < $2
ORDER BY at DESC, n DESC
LIMIT $3 OFFSET $4
