SELECT presence FROM stoker.presence ORDER BY worker
