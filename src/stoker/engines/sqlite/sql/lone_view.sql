-- A lone draft in one statement: most enqueues are just that, and between two statements lies more time than in them.
-- It exists in our own writing connection alone, so that the file needs to know nothing of it.
CREATE TEMP VIEW stoker_lone AS
SELECT seq, id, qid, priority, due, kind, payload, budget, created, tenant, options, created AS mark_before
FROM main.stoker_body
