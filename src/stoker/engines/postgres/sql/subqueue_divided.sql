-- Whether a queue has subqueues, or will have them with the next claim.
SELECT
    EXISTS (SELECT 1 FROM stoker.subqueue AS s WHERE s.queue = $1)
    OR EXISTS (SELECT 1 FROM stoker.subqueue_log AS l WHERE l.queue = $1)
