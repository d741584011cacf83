CALL stoker.put(
    $1::text, $2::text, $3::bigint, $4::text, $5::text, $6::smallint, $7::int, $8::uuid, $9::text, $10::bigint, $11::bigint,
    $12::text, $13::text
)
