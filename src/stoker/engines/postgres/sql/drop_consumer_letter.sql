DELETE FROM stoker.letter WHERE rid = $1::int
