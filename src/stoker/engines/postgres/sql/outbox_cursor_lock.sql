SELECT 1 FROM stoker.cursor WHERE rid = $1::int AND pid = $2::int AND turn = $3::bigint FOR UPDATE
