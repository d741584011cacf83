-- How the last run of these jobs was ended, and under which token.
SELECT id, token, settled FROM stoker.ready WHERE id = ANY($1::uuid[])
UNION ALL
SELECT id, token, settled FROM stoker.done WHERE id = ANY($1::uuid[])
