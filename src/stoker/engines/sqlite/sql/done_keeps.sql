-- The next retention that done jobs have.
SELECT expires - finished FROM stoker_done
WHERE status = 3 AND expires - finished > ?1
ORDER BY expires - finished
LIMIT 1
