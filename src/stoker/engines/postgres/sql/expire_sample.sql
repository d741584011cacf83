-- How long the youngest finished jobs are kept, by their ids.
SELECT id, expires FROM stoker.done ORDER BY id DESC LIMIT $1
