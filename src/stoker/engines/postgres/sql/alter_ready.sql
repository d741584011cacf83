-- Which of these jobs wait. Claims step over a row that is locked.
SELECT id FROM stoker.ready WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE
