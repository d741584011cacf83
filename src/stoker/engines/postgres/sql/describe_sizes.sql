SELECT c.relname, pg_total_relation_size(c.oid)
FROM pg_catalog.pg_class AS c
WHERE
    c.relnamespace = (SELECT relnamespace FROM pg_catalog.pg_class WHERE oid = 'stoker.job'::regclass)
    AND c.relkind IN ('r', 'p', 'm')
ORDER BY pg_total_relation_size(c.oid) DESC
