-- Where a key cannot be read, whatever the job holds is let go of.
DELETE FROM stoker.dedupe WHERE id = ANY($1::uuid[])
