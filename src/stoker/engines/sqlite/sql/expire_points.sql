DELETE FROM stoker_points WHERE bucket < ?1 RETURNING 1
