SELECT job, block, at FROM stoker.removed WHERE job = ANY($1::uuid[])
