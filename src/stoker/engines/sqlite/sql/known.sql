SELECT seq FROM stoker_body WHERE id = ?1
