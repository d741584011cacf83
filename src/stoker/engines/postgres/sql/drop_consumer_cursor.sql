DELETE FROM stoker.cursor WHERE rid = $1::int
