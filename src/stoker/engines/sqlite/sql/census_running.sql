SELECT qid, min(claimed) FROM stoker_running GROUP BY qid
