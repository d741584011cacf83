-- Groups that jobs are going to join: they cannot be closed before the commit.
SELECT id, sealed, abandoned, closed FROM stoker.job_group WHERE id = ANY($1::uuid[]) ORDER BY id FOR SHARE
