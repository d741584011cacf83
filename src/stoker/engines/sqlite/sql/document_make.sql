INSERT INTO stoker_documents (sort, name, document) VALUES (?1, ?2, ?3)
ON CONFLICT (sort, name) DO NOTHING
RETURNING 1
