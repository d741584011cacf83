UPDATE stoker.job_group SET sealed = true, abandoned = $2::boolean
WHERE id = $1::uuid AND NOT sealed
RETURNING id
