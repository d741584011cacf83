-- The last $1 groups and their callbacks.
SELECT id, callbacks FROM stoker.job_group ORDER BY id DESC LIMIT $1
