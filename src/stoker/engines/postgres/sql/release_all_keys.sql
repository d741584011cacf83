-- Release whatever these jobs hold: their keys cannot be read.
DELETE FROM stoker.dedupe WHERE id = ANY($1::uuid[])
