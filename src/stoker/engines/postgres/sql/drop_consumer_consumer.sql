DELETE FROM stoker.consumer WHERE rid = $1::int
