INSERT INTO stoker.subqueue_log (queue, name, look)
SELECT s.queue, s.name, 0 FROM stoker.subqueue AS s WHERE s.queue = $1
