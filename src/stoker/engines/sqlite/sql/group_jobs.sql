SELECT callbacks, members FROM stoker_group_jobs WHERE id = ?1
