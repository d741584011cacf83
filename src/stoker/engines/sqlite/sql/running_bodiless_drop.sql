-- Claims of jobs whose body is gone.
DELETE FROM stoker_running WHERE NOT EXISTS (SELECT 1 FROM stoker_body AS b WHERE b.seq = stoker_running.seq)
RETURNING seq
