SELECT moved, seen::text, missed, started
FROM stoker.sequence($1::text, $2::text::pg_snapshot, $3::bigint, $4::int, $5::boolean, $6::boolean)
