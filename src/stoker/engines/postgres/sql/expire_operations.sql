DELETE FROM stoker.document
WHERE sort = 'operations' AND COALESCE((document::json ->> 'seen')::bigint, 0) < $1
RETURNING 1
