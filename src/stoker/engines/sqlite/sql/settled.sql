SELECT settled, token FROM stoker_jobs WHERE id = ?1
