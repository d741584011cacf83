SELECT qid, kind, what, n FROM stoker_counts WHERE n > 0
