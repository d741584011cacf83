-- The indexes of the schema, and whether the server uses them.
SELECT c.relname::text, i.indisvalid AND i.indisready
FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
WHERE c.relnamespace = (SELECT relnamespace FROM pg_catalog.pg_class WHERE oid = 'stoker.job'::regclass)
