DELETE FROM stoker_documents
WHERE sort = 'operations' AND COALESCE(json_extract(CAST(document AS TEXT), '$.seen'), 0) < ?1
RETURNING 1
