UPDATE stoker.consumer SET paused = $2::boolean WHERE rid = $1::int
