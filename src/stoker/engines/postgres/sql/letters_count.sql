SELECT count(*)::int
FROM stoker.stream AS s
JOIN stoker.consumer AS k ON k.sid = s.sid
JOIN stoker.letter AS l ON l.rid = k.rid
WHERE
    ($1::text IS NULL OR s.name = $1::text) AND ($2::text IS NULL OR k.name = $2::text)
    AND ($3::text IS NULL OR l.status = $3::text)
    AND ($4::text IS NULL OR l.key = $4::text)
    AND ($5::int IS NULL OR (l.pid & 63) = $5::int)
    AND ($6::text IS NULL OR l.type = $6::text)
    AND ($7::uuid[] IS NULL OR l.id = ANY($7::uuid[]))
    AND l.failed <= $8::bigint
    AND (
        l.failed < $8::bigint
        OR (s.name, k.name, l.pid & 63, l.number) > ($9::text, $10::text, $11::int, $12::bigint)
    )
