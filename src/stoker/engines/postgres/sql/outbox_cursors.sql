SELECT * FROM stoker.cursors(0, $1::text, $2::text, $3::int, $4::text, $5::bigint, $6::bigint)
