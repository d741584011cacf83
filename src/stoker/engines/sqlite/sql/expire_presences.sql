DELETE FROM stoker_presences WHERE seen < ?1 RETURNING 1
