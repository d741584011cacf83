SELECT
    EXISTS (SELECT 1 FROM stoker_done WHERE id = ?1) OR NOT EXISTS (SELECT 1 FROM stoker_body WHERE id = ?1)
