DELETE FROM stoker.job_group WHERE id = ANY($1::uuid[]) RETURNING id
