-- How many messages of each partition of a stream have no number yet, and when the first of them was appended.
SELECT i.part, count(*), (min(ARRAY[i.n, i.created]))[2] FROM stoker.incoming AS i WHERE i.sid = $1::int GROUP BY i.part
