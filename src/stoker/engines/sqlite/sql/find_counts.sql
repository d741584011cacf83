SELECT qid, what, sum(n) FROM stoker_counts WHERE what IN (0, 1, 2) GROUP BY qid, what
