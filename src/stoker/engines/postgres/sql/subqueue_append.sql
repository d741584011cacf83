INSERT INTO stoker.subqueue_log (queue, name, freed, look, options, anew)
SELECT * FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::text[], $6::boolean[])
