SELECT coalesce(sum(n), 0) FROM stoker_counts WHERE what BETWEEN 3 AND 7
