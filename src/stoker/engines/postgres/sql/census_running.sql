SELECT queue, min(claimed) FROM stoker.lease GROUP BY queue
