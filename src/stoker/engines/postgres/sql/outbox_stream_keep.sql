UPDATE stoker.stream SET keep = $2::bigint WHERE sid = $1::int
