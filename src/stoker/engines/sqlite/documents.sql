-- name: documents
SELECT document FROM stoker_documents WHERE kind = ?1

-- name: document_make
INSERT INTO stoker_documents (kind, name, document) VALUES (?1, ?2, ?3)
ON CONFLICT (kind, name) DO NOTHING
RETURNING 1

-- name: document_write
UPDATE stoker_documents SET document = ?3 WHERE kind = ?1 AND name = ?2 AND document = ?4 RETURNING 1

-- name: document_drop
DELETE FROM stoker_documents WHERE kind = ?1 AND name = ?2 AND document = ?3 RETURNING 1
