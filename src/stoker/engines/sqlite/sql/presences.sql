SELECT presence FROM stoker_presences ORDER BY worker
